"""The bidirectional transformer behind LLaDA and Dream.

Axis letters: B rows, Q query positions, T canvas positions, D width, V embedding rows, N chosen tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from depcap_jax.models.config import ModelConfig
from depcap_jax.models.layers import Block, LayerCache, Queries, RMSNorm, Rotation, random_param

KVCache = tuple[LayerCache, ...]
"""One cache per layer: separate arrays, so that each is updated in place."""


class Transformer(nnx.Module):
    """A masked-diffusion language model: every position sees every valid position.

    A module is a pytree: pass it to `jax.jit` and `lax.while_loop` as an argument.
    """

    def __init__(self, config: ModelConfig, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs):
        self.config = config
        self.embed = random_param(rngs, (config.embedding_size, config.width), dtype)
        self.layers = nnx.List([Block(config, dtype=dtype, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config, dtype=dtype)
        self.head = (
            None
            if config.tie_embeddings
            else random_param(rngs, (config.width, config.embedding_size), dtype)
        )

    @classmethod
    def abstract(cls, config: ModelConfig, *, dtype: DTypeLike = jnp.float32) -> Transformer:
        """The model with shapes in place of arrays: costs nothing at any size."""
        return nnx.eval_shape(lambda: cls(config, dtype=dtype, rngs=nnx.Rngs(0)))

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of weights and hidden states; logits are always float32."""
        return self.embed[...].dtype

    def __call__(self, input_ids: jax.Array, valid: jax.Array | None = None) -> jax.Array:
        """Logits float32 [B, T, V] of ids [B, T], as the checkpoint gives them (Dream's are not shifted).

        `valid` [B, T] marks the positions that may be attended to; all of them by default.
        """
        valid = jnp.ones(input_ids.shape, bool) if valid is None else valid
        return self.logits(self.hidden(input_ids, valid=valid)[0])

    def hidden(
        self,
        input_ids: jax.Array,
        *,
        valid: jax.Array,
        start: jax.Array | None = None,
        cache: KVCache | None = None,
        write: jax.Array | None = None,
    ) -> tuple[jax.Array, KVCache | None]:
        """Normed last hidden states [B, Q, D] of some canvas positions, and the updated cache.

        Args:
          input_ids: [B, Q] the ids at those positions.
          valid: [B, T] the canvas positions that may be attended to.
          start: [B] which canvas positions these are, [start, start + Q) with start + Q <= T; None: all
            of them (Q = T).
          cache: keys and values of the whole canvas; None: there is none, and Q = T.
          write: [B, Q] which positions put their new keys and values into the cache before it is
            read; the others are seen with the keys and values they had. None: all of them.
        """
        batch, length = input_ids.shape
        if cache is None and valid.shape != input_ids.shape:
            raise ValueError(
                f"without a cache the queries are the whole canvas: got input_ids {input_ids.shape}, "
                f"valid {valid.shape}"
            )
        write = jnp.ones(input_ids.shape, bool) if write is None else write
        first = jnp.zeros(batch, jnp.int32) if start is None else start
        chex.assert_shape([input_ids, write], (batch, length))
        chex.assert_shape([valid, first], [(batch, None), (batch,)])
        rotation = Rotation.at(first[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :], self.config)
        queries = Queries(rotation, valid, start, write)
        x = self.embed[...][input_ids]
        layer_caches: Sequence[LayerCache | None] = cache or [None] * self.config.num_layers
        updated = []
        for layer, layer_cache in zip(self.layers, layer_caches, strict=True):
            x, layer_cache = layer(x, queries, layer_cache)
            updated.append(layer_cache)
        return self.norm(x), None if cache is None else tuple(updated)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """The output head alone: float32 [..., V] of hidden states [..., D]."""
        head = self.embed[...].T if self.head is None else self.head[...]
        return jnp.matmul(hidden, head, preferred_element_type=jnp.float32)

    def token_logits(self, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
        """The logits of chosen tokens alone: float32 [B, Q, N] of hidden [B, Q, D] and ids `tokens` [B, N].

        They are what `logits` has at these ids, for a small part of its cost.
        """
        chex.assert_shape([hidden, tokens], [(None, None, self.config.width), (len(hidden), None)])
        if self.head is None:
            columns, axes = self.embed[...][tokens], "bqd,bnd->bqn"
        else:
            columns, axes = self.head[...][:, tokens], "bqd,dbn->bqn"
        return jnp.einsum(axes, hidden, columns, preferred_element_type=jnp.float32)

    def source(self, position: jax.Array) -> jax.Array:
        """Where the model predicts a position: the positions whose hidden states predict `position` [...].

        Dream predicts position i at i - 1, and position 0 at itself; LLaDA predicts each at itself.
        """
        return jnp.maximum(position - 1, 0) if self.config.predicts_next else position

    def init_cache(self, batch: int, length: int) -> KVCache:
        """An empty cache for a canvas of [batch, length]."""
        shape = (batch, self.config.num_kv_heads, self.config.head_dim, length)
        return tuple(
            LayerCache(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
            for _ in range(self.config.num_layers)
        )
