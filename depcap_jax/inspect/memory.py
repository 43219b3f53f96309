"""How much memory does a decode need on a device? From shapes alone: nothing is loaded or run."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType

from depcap_jax.checkpoints.devices import has_fused_attention
from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.decoding.compute.spans import BUSY_ACCELERATOR
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.inspect.accelerators import Accelerator
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.models.parameters import leaf_shapes, on_mesh
from depcap_jax.models.transformer import stack_layers


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each device."""

    weights: int
    """Exact."""
    cache: int
    """Keys and values of every layer and position; exact, 0 without a cache."""
    work: int
    """What a turn holds at its widest: an estimate."""
    loading: int
    """What is there twice at the widest moment of loading: a kind of weight while its layers are stacked."""

    @property
    def total(self) -> int:
        """All that decoding needs."""
        return self.weights + self.cache + self.work

    @property
    def peak(self) -> int:
        """The most that loading or decoding needs."""
        return max(self.total, self.weights + self.loading)


def as_loaded(config: ModelConfig, dtype: str, device: Accelerator | None = None) -> Transformer:
    """The shapes of the model as `load` would make it on the device; None: on a CPU."""
    model = Transformer.abstract(config, dtype=DTYPES[dtype])
    if device is None:
        return model
    model.fused_attention = has_fused_attention(device, dtype)
    return jax.eval_shape(stack_layers, model) if device.platform == "tpu" else model


def as_decoded(config: DecodeConfig, device: Accelerator | None = None) -> DecodeConfig:
    """The decoder with what its cache would choose on the device; None: on this machine."""
    cache: Any = config.cache
    if device is None or getattr(cache, "together", 0) is not None:
        return config
    return dataclasses.replace(config, cache=dataclasses.replace(cache, together=BUSY_ACCELERATOR))


def estimate(
    model: Transformer,
    config: DecodeConfig,
    *,
    batch: int = 1,
    prompt_length: int = 128,
    device: Accelerator | None = None,
    tensor: int = 1,
) -> Memory:
    """The memory of `generate` for a batch of prompts of one length, on each device.

    Args:
      model: its shapes are enough, as `as_loaded` makes them.
      config: how to decode.
      batch: rows.
      prompt_length: positions of each row before its answer.
      device: one of `ACCELERATORS`; None: this machine's CPU.
      tensor: over how many devices the weights are split: the mesh's axis "tensor".

    Raises:
      ValueError: if a count is below 1, or prompt and answer do not fit into the context.
    """
    for name, count in (("batch", batch), ("prompt_length", prompt_length), ("tensor", tensor)):
        check_integer(name, count, 1)
    canvas = prompt_length + config.gen_length
    if canvas > model.config.max_length:
        raise ValueError(
            f"a prompt of {prompt_length} and an answer of {config.gen_length} exceed the model's context of "
            f"{model.config.max_length} positions"
        )
    config = as_decoded(config, device)
    weights, largest = _weights(model, tensor)
    kept = jax.tree.leaves(jax.eval_shape(lambda m: config.cache.init(m, batch, canvas), model))
    cache = sum(_bytes(leaf) for leaf in kept if leaf.ndim > 1)  # beside them there are counts per row
    cache //= 1 if model.config.num_kv_heads % tensor else tensor
    alive = _ALIVE["cpu" if device is None else device.platform]
    work = _work(model, config, batch, canvas, tensor, alive)
    if model.is_scanned and tensor == 1 and model.head is not None:
        # On one TPU chip XLA keeps the head once more, as the gather of chosen tokens wants it; with several
        # rows twice, and half of the cache.
        work += _bytes(model.head) if batch == 1 else 2 * _bytes(model.head) + cache // 2
    return Memory(weights, cache, work, loading=largest if model.is_scanned else 0)


@functools.lru_cache(maxsize=16)
def _weights(model: Transformer, tensor: int) -> tuple[int, int]:
    """Bytes of all weights on each device, and of the largest in the layers."""
    split = on_mesh(model, AbstractMesh((tensor,), ("tensor",), axis_types=(AxisType.Auto,)))
    return _bytes(split), max(map(_bytes, jax.tree.leaves(split.layers)))


@functools.lru_cache(maxsize=16)
def _itemsize(model: Transformer) -> int:
    """Of hidden states."""
    return jax.eval_shape(lambda m: jnp.zeros((), m.dtype), model).dtype.itemsize


class _Alive(NamedTuple):
    """How many arrays of a kind there are at once, as read off XLA's plans."""

    ff: int
    """Inner states of the feed-forward, ..."""
    stream: int
    """... and hidden states beside them."""
    scores: float
    """Attention scores, in float32."""
    tiles: int
    """A tile of logits."""
    head: int
    """The head in full, if it is kept in few bits."""


_ALIVE = {
    "gpu": _Alive(ff=2, stream=5, scores=1.5, tiles=4, head=1),
    "tpu": _Alive(ff=2, stream=5, scores=1.5, tiles=4, head=0),
    "cpu": _Alive(ff=5, stream=5, scores=3, tiles=3, head=1),
}


def _work(
    model: Transformer, config: DecodeConfig, batch: int, canvas: int, tensor: int, alive: _Alive
) -> int:
    """The widest of a turn's moments: a layer's feed-forward, its attention, a tile of the head."""
    sizes, itemsize = model.config, _itemsize(model)
    cache: Any = config.cache
    widths = (
        cache.widths(model, config.sizes, batch, canvas) if hasattr(cache, "widths") else ([canvas], [batch])
    )
    positions = max(width * rows for width, rows in zip(*widths, strict=True))
    ff, kv_heads, vocabulary = (
        size if size % tensor else size // tensor
        for size in (sizes.ff_width, sizes.num_kv_heads, sizes.embedding_size)
    )
    heads = 0 if model.fused_attention else kv_heads * sizes.num_heads // sizes.num_kv_heads
    stream = positions * sizes.width * itemsize
    layer = alive.ff * positions * ff * itemsize + alive.stream * stream
    scores = int(alive.scores * positions * heads * canvas * 4) + 2 * stream
    tile = batch * min(TILE, config.sizes.window) * vocabulary * 4
    hidden = batch * (config.sizes.window + config.sizes.longest) * sizes.width * itemsize
    # In few bits, the matrix of a product is there in full meanwhile.
    in_full = 0 if sizes.quantize is None else sizes.width * itemsize
    return max(layer + in_full * ff, scores, alive.tiles * tile + hidden + alive.head * in_full * vocabulary)


def count_parameters(model: ModelConfig) -> int:
    """The number of weights."""
    one, two = (
        sum(map(math.prod, leaf_shapes(dataclasses.replace(model, num_layers=count, quantize=None)).values()))
        for count in (1, 2)
    )
    return one + (model.num_layers - 1) * (two - one)  # tracing all layers takes seconds


def _bytes(tree: object) -> int:
    """Of the parts on one device, where the leaves say how they are split."""

    def size(leaf: Any) -> int:
        sharding = getattr(leaf, "sharding", None)
        shape = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(map(size, jax.tree.leaves(tree)))
