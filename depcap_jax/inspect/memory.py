"""How much memory does a decode need on a device? From shapes alone: nothing is loaded or run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.models import ModelConfig, Transformer


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on the device."""

    weights: int
    """Exact."""
    cache: int
    """Keys and values of every layer and position; exact, 0 without a cache."""
    work: int
    """What a pass holds at its widest: an estimate, for DepCap within a third of what XLA plans."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.work


def estimate(
    model: ModelConfig,
    config: DecodeConfig,
    *,
    batch: int = 1,
    prompt_length: int = 128,
    dtype: DTypeLike = jnp.bfloat16,
) -> Memory:
    """The memory of `generate` for a batch of prompts of one length.

    Raises:
      ValueError: if a count is below 1, or prompt and answer do not fit into the context.
    """
    check_integer("batch", batch, 1)
    check_integer("prompt_length", prompt_length, 1)
    canvas = prompt_length + config.gen_length
    if canvas > model.max_length:
        raise ValueError(
            f"a prompt of {prompt_length} and an answer of {config.gen_length} exceed the model's context of "
            f"{model.max_length} positions"
        )
    abstract = Transformer.abstract(model, dtype=dtype)
    kept = jax.tree.leaves(jax.eval_shape(lambda m: config.cache.init(m, batch, canvas), abstract))
    cache = jax.eval_shape(lambda m: m.init_cache(batch, canvas), abstract) if kept else None
    own: Any = config.cache
    widths = (
        own.widths(abstract, config.sizes, batch, canvas) if hasattr(own, "widths") else [[canvas], [batch]]
    )
    positions = max(width * rows for width, rows in zip(*widths, strict=True))
    # The widest moments: a layer's feed-forward beside its input, its attention scores, a tile of the head.
    layer = positions * (4 * model.ff_width + 4 * model.width) * jnp.dtype(dtype).itemsize
    scores = 3 * positions * model.num_heads * canvas * 4
    head = 4 * batch * min(TILE, config.sizes.window) * model.embedding_size * 4
    return Memory(
        _bytes(abstract), _bytes(cache), max(layer, scores, head) + batch * canvas * model.width * 4
    )


def count_parameters(model: ModelConfig) -> int:
    """The number of weights."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(Transformer.abstract(model)))


def _bytes(tree: object) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
