"""The bidirectional transformer behind LLaDA, Dream and the diffusion models in Qwen's layouts."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from depcap_jax.models.config import ModelConfig
from depcap_jax.models.key_values import KeyValues
from depcap_jax.models.layers import (
    Block,
    LayerCache,
    Queries,
    RMSNorm,
    Rotation,
    random_matrix,
    read_matrix,
    stream_dtype,
)
from depcap_jax.models.quantization import Quantized, dequantize
from depcap_jax.models.sparse_key_values import SparseKeyValues
from depcap_jax.models.watching import Watch

KVCache = tuple[LayerCache, ...] | LayerCache
"""One cache per layer, separate arrays that are each updated in place; or one for all layers, if scanned."""


class Transformer(nnx.Module):
    """A masked-diffusion language model: every position sees every position that is no padding.

    A module is a pytree: pass it to `jax.jit` and `lax.while_loop` as an argument.
    """

    fused_attention: bool
    """Attention by cuDNN's fused kernel: on NVIDIA GPUs from Ampere on, in half precision. `load` sets it."""

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        self.fused_attention = False
        self.rotation: Rotation | None = nnx.data(None)
        size = config.embedding_size
        self.embed, self.embed_scale = random_matrix(
            rngs, (size, config.width), dtype, config.quantize, axis=1
        )
        self.layers: nnx.List[Block] | Block = nnx.List(
            [Block(config, dtype=dtype, rngs=rngs) for _ in range(config.num_layers)]
        )
        self.norm = RMSNorm(config.width, config.norm_eps, dtype=dtype)
        self.head, self.head_scale = (
            (None, None)
            if config.tie_embeddings
            else random_matrix(rngs, (config.width, size), dtype, config.quantize, axis=0)
        )

    @classmethod
    def abstract(cls, config: ModelConfig, *, dtype: DTypeLike = jnp.float32) -> Transformer:
        """The model with shapes in place of arrays: costs nothing at any size."""
        # Tracing how weights are drawn takes a while, and all layers are alike.
        shallow = dataclasses.replace(config, num_layers=1)
        model = nnx.eval_shape(lambda: cls(shallow, dtype=dtype, rngs=nnx.Rngs(0)))
        layer = nnx.eval_shape(lambda: Block(config, dtype=dtype, rngs=nnx.Rngs(0)))
        model.layers = nnx.List([nnx.clone(layer) for _ in range(config.num_layers)])
        model.config = config
        return model

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of weights (or of their scales) and hidden states; logits are always float32."""
        return self.norm.scale[...].dtype

    def __call__(self, input_ids: jax.Array, lengths: jax.Array | None = None) -> jax.Array:
        """Logits float32 [B, T, V] of ids [B, T], as the checkpoint gives them (Dream's are not shifted).

        Positions from `lengths` [B] on are padding, which nobody attends to; by default there is none.
        """
        return self.logits(self.hidden(input_ids, lengths=lengths)[0])

    def hidden(
        self,
        input_ids: jax.Array,
        *,
        lengths: jax.Array | None = None,
        start: jax.Array | None = None,
        cache: KVCache | None = None,
        write: jax.Array | None = None,
        rows: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache | None]:
        """Normed last hidden states [B, Q, D] of some canvas positions, and the updated cache.

        Args:
          input_ids: [B, Q] the ids at those positions.
          lengths: [B] canvas positions from here on are padding, which nobody attends to; None: there is
            none.
          start: [B] which canvas positions these are, [start, start + Q) with start + Q <= T; None: all
            of them (Q = T).
          cache: keys and values of the whole canvas; None: there is none, and Q = T.
          write: [B, Q] which positions put their new keys and values into the cache before it is
            read; the others are seen with the keys and values they had. None: all of them.
          rows: [B] which rows of the cache these are; None: all of them.
        """
        return self._pass(input_ids, lengths, start, cache, write, rows)[:2]

    def hidden_and_attention(
        self, input_ids: jax.Array, watched: jax.Array, layers: int, **others: Any
    ) -> tuple[jax.Array, KVCache | None, jax.Array]:
        """What `hidden` gives, and the attention weights float32 [B, W, T] of some of its queries.

        They are the mean over the heads and over the last layers, and sum to 1 over the keys that are seen:
        those of the canvas, or without a cache of the pass.

        Args:
          input_ids: [B, Q], as in `hidden`.
          watched: [B, W] whose weights, as indices into the Q positions.
          layers: how many of the last layers; where there are fewer, all.
          **others: as in `hidden`.

        Raises:
          ValueError: if `layers` is below 1.
        """
        if layers < 1:
            raise ValueError(f"layers must be an integer of at least 1, got {layers}")
        chex.assert_shape(watched, (len(input_ids), None))
        num_layers = self.config.num_layers
        watch = Watch(watched, max(num_layers - layers, 0), num_layers)
        x, cache, attention = self._pass(input_ids, **others, watch=watch)
        assert attention is not None
        return x, cache, attention

    def _pass(
        self,
        input_ids: jax.Array,
        lengths: jax.Array | None = None,
        start: jax.Array | None = None,
        cache: KVCache | None = None,
        write: jax.Array | None = None,
        rows: jax.Array | None = None,
        watch: Watch | None = None,
    ) -> tuple[jax.Array, KVCache | None, jax.Array | None]:
        batch, length = input_ids.shape
        canvas = length if cache is None else (cache[0] if isinstance(cache, tuple) else cache).length
        if start is None and canvas != length:
            raise ValueError(f"{length} positions of a canvas of {canvas}: tell with `start` which they are")
        if start is not None and cache is None:
            raise ValueError(
                "without a cache the positions are the whole canvas: `start` is for a cached pass"
            )
        lengths = jnp.full(batch, canvas, jnp.int32) if lengths is None else lengths
        write = jnp.ones(input_ids.shape, bool) if write is None else write
        chex.assert_shape([input_ids, write], (batch, length))
        chex.assert_shape([lengths] if start is None else [lengths, start], (batch,))
        rotation = self.on_canvas(canvas).rotation
        assert rotation is not None
        if start is None:
            rotation = Rotation(*(x[None, :length, None] for x in rotation))
        else:
            rotation = rotation.at(start[:, None] + jnp.arange(length, dtype=jnp.int32)[None])
        queries = Queries(rotation, lengths.astype(jnp.int32), start, write, rows, self.fused_attention)
        x = _take_matrix(self.embed, self.embed_scale, input_ids, axis=0).astype(stream_dtype(self.dtype))
        x, cache, attention = self._run_layers(x, queries, cache, watch, canvas)
        return self.norm(x), cache, attention

    def _run_layers(
        self, x: jax.Array, queries: Queries, cache: KVCache | None, watch: Watch | None, canvas: int
    ) -> tuple[jax.Array, KVCache | None, jax.Array | None]:
        attention: Any = None if watch is None else watch.begin(x, canvas)
        if isinstance(self.layers, Block):

            def step(carry: Any, layer: tuple[Block, jax.Array]) -> tuple[Any, None]:
                x, cache, attention = carry
                x, cache, looked = layer[0](x, queries, cache, layer[1])
                return (x, cache, watch and watch.add(attention, layer[1], looked)), None

            index = jnp.arange(self.config.num_layers, dtype=jnp.int32)
            return lax.scan(step, (x, cache, attention), (self.layers, index))[0]
        layer_caches: Any = cache or [None] * self.config.num_layers
        updated = []
        for index, (layer, layer_cache) in enumerate(zip(self.layers, layer_caches, strict=True)):
            x, layer_cache, looked = layer(x, queries, layer_cache)
            attention = watch and watch.add(attention, index, looked)
            updated.append(layer_cache)
        return x, None if cache is None else tuple(updated), attention

    def on_canvas(self, length: int) -> Transformer:
        """The same model, with the rotations of a canvas computed: what its passes, and their layers, share.

        Those of a longer canvas serve too. Inside a pass XLA would compute them anew in each layer and head.
        """
        if self.rotation is not None and len(self.rotation.cos) >= length:
            return self
        model = _copy(self)
        model.rotation = nnx.data(Rotation.of_canvas(length, self.config))
        return model

    def logits(self, hidden: jax.Array) -> jax.Array:
        """The output head alone: float32 [..., V] of hidden states [..., D]."""
        if self.head is None:
            head = read_matrix(self.embed, self.embed_scale, axis=1).T
        else:
            head = read_matrix(self.head, self.head_scale, axis=0)
        return jnp.matmul(hidden, head, preferred_element_type=jnp.float32)

    def token_logits(self, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
        """The logits of chosen tokens alone: float32 [B, Q, C] of hidden [B, Q, D] and ids `tokens` [B, C].

        They are what `logits` has at these ids, for a small part of its cost.
        """
        chex.assert_shape([hidden, tokens], [(None, None, self.config.width), (len(hidden), None)])
        if self.head is None:
            chosen, axes = _take_matrix(self.embed, self.embed_scale, tokens, axis=0), "bqd,bnd->bqn"
        else:
            chosen, axes = _take_matrix(self.head, self.head_scale, tokens, axis=1), "bqd,dbn->bqn"
        return jnp.einsum(axes, hidden, chosen, preferred_element_type=jnp.float32)

    def source(self, position: jax.Array) -> jax.Array:
        """Where the model predicts a position: the positions whose hidden states predict `position` [...].

        Dream predicts position i at i - 1, and position 0 at itself; LLaDA predicts each at itself.
        """
        return jnp.maximum(position - 1, 0) if self.config.predicts_next else position

    def init_cache(self, batch: int, length: int) -> KVCache:
        """An empty cache for a canvas of [batch, length]."""
        layers, sizes = self.config.num_layers, (length, self.config.num_kv_heads, self.config.head_dim)

        def empty(*lead: int) -> KeyValues:
            return KeyValues.empty((*lead, *sizes), self.dtype, positions_first=self.fused_attention)

        return empty(batch, layers) if self.is_scanned else tuple(empty(batch) for _ in range(layers))

    def init_sparse_cache(self, batch: int, length: int, *, window: int, keep: float) -> KVCache:
        """An empty cache for a canvas of [batch, length] that keeps a share of what is outside a window.

        Windows have up to `window` positions; `with_window` tells where they are.
        """
        slots = self.init_cache(batch, max(1, int(keep * length)) + window)
        begin = end = jnp.zeros(batch, jnp.int32)

        def sparse(slots: LayerCache) -> SparseKeyValues:
            assert isinstance(slots, KeyValues)
            return SparseKeyValues(slots, begin, end, length, window, keep, prunes=False)

        return tuple(map(sparse, slots)) if isinstance(slots, tuple) else sparse(slots)

    def with_window(self, cache: KVCache, begin: jax.Array, end: jax.Array, *, prunes: bool) -> KVCache:
        """A sparse cache for windows [begin, end) [B], and for full passes, which prune it, or for others."""

        def point(sparse: LayerCache) -> SparseKeyValues:
            assert isinstance(sparse, SparseKeyValues)
            return dataclasses.replace(sparse, begin=begin, end=end, prunes=prunes)

        return tuple(map(point, cache)) if isinstance(cache, tuple) else point(cache)

    @property
    def is_scanned(self) -> bool:
        """Whether the layers are one, with stacked weights, under `lax.scan`; see `stack_layers`."""
        return isinstance(self.layers, Block)


def stack_layers(model: Transformer) -> Transformer:
    """The same model with its layers as one, scanned: it compiles in the time of one layer.

    It runs slower on CPUs, where each step copies a layer's weights out of the stack.
    """
    if isinstance(model.layers, Block):
        return model
    stacked = _copy(model)
    stacked.layers = jax.tree.map(lambda *leaves: jnp.stack(leaves), *model.layers)
    return stacked


def unstack_layers(model: Transformer) -> Transformer:
    """The same model with a list of layers: the opposite of `stack_layers`."""
    if not isinstance(model.layers, Block):
        return model
    unrolled, stack = _copy(model), model.layers
    unrolled.layers = nnx.List(
        [jax.tree.map(lambda leaf, i=i: leaf[i], stack) for i in range(model.config.num_layers)]
    )
    return unrolled


def _copy(model: Transformer) -> Transformer:
    return jax.tree.map(lambda leaf: leaf, model)  # of the module, not of its arrays


def _take_matrix(
    values: nnx.Param[jax.Array], scale: nnx.Param[jax.Array] | None, tokens: jax.Array, *, axis: int
) -> jax.Array:
    """What belongs to tokens [B, C] along the vocabulary's axis; products sum over the other one."""
    if scale is None:
        return _take(values[...], tokens, axis=axis)
    taken = Quantized(*(_take(x[...], tokens, axis=axis) for x in (values, scale)))
    return dequantize(taken, axis=2 if axis == 0 else 0)


def _take(weights: jax.Array, tokens: jax.Array, *, axis: int) -> jax.Array:
    """What belongs to tokens [B, C] along the vocabulary's axis of weights."""

    def plain(weights: jax.Array, tokens: jax.Array) -> jax.Array:
        return jnp.take(weights, tokens, axis=axis, mode="clip")

    def as_bits(weights: jax.Array, tokens: jax.Array) -> jax.Array:
        # Without the barrier a loop would keep a copy of the bits.
        weights, tokens = lax.optimization_barrier((weights, tokens))
        bits = lax.bitcast_convert_type(weights, jnp.uint16)
        return lax.bitcast_convert_type(plain(bits, tokens), weights.dtype)

    if weights.dtype.itemsize != 2:
        return plain(weights, tokens)
    # XLA's CPU backend takes nothing from arrays in half precision: it would make a copy in float32.
    return lax.platform_dependent(weights, tokens, cpu=as_bits, default=plain)
