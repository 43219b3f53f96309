"""Other papers' caches."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp

from depcap_jax.decoding.caching import (
    TOGETHER,
    Pass,
    PassInfo,
    Rows,
    Sizes,
    block_widths,
    canvas_widths,
)
from depcap_jax.decoding.compute.spans import Spans, Widths, busy, run_spans
from depcap_jax.decoding.model import DiffusionLM, SparseLM
from depcap_jax.decoding.policy import policy, setting
from depcap_jax.decoding.state import DecodeState


class SparseMemory(NamedTuple):
    """What a sparse cache keeps."""

    kv: Any  # the model's keys and values
    passes: jax.Array  # [B] int32: passes since the block began
    begin: jax.Array  # [B] int32: where the block was at its last full pass


@policy
class SparseCache:
    """Sparse-dLLM (arXiv 2508.02558): a dual cache of which a block sees only the keys it asks for most.

    A block begins with full passes; the last of them prunes. Then only the block is recomputed, and sees
    itself and the share `keep` of all other positions, in each layer those whose keys the block's mean
    query likes best. The published program takes fixed blocks. Where lengths differ, a block's own length
    is not known yet when the pass runs: what the longest block would reach is not pruned.
    """

    keep: float = setting(
        default=0.5, low=0, high=1, static=True, doc="share that is kept of the positions outside the block"
    )
    full_passes: int = setting(
        default=2, low=1, doc="full passes of each block; the paper's second one has seen a commit"
    )
    window: int = setting(default=128, low=1, doc="the longest block that there is room for")
    together: int | None = TOGETHER

    def init(self, model: DiffusionLM, batch: int, length: int) -> SparseMemory:
        """Room for what is kept."""
        zeros = jnp.zeros(batch, jnp.int32)
        window = min(self.window, length)
        kv = _sparse(model).init_sparse_cache(batch, length, window=window, keep=self.keep)
        return SparseMemory(kv, zeros, zeros)

    def __call__(
        self, model: DiffusionLM, state: DecodeState, sizes: Sizes, rows: Rows, memory: SparseMemory
    ) -> tuple[Pass, SparseMemory, PassInfo]:
        """Full passes for some rows, and passes over their blocks for the others."""
        if sizes.watch.layers:
            raise ValueError(
                f"{sizes.watch.reader} reads attention to all positions, of which SparseCache keeps some: "
                "use DualCache"
            )
        if sizes.longest > self.window:
            raise ValueError(
                f"window must be at least the longest block, {sizes.longest}, got {self.window}: "
                f"SparseCache(window={sizes.longest})"
            )
        full = rows.live & (rows.at_start | (memory.passes < self.full_passes))
        begin = jnp.where(full, state.block_start, memory.begin)
        end = jnp.minimum(begin + sizes.longest, state.answer_end)
        whole = Spans(full, jnp.zeros_like(begin), state.length)
        block = Spans(rows.live & ~full, state.block_start, state.block_end)
        wide, narrow = self._widths(model, sizes, *state.tokens.shape)
        kv = _sparse(model).with_window(memory.kv, begin, end, prunes=True)
        of_all, kv, its_width = run_spans(model, state, whole, sizes.window, kv, wide, sizes.watch)
        kv = _sparse(model).with_window(kv, begin, end, prunes=False)
        of_block, kv, width = run_spans(model, state, block, sizes.window, kv, narrow, sizes.watch)
        hidden = jnp.where(full[:, None, None], of_all.hidden, of_block.hidden)
        width += its_width  # one of the two is 0
        passes = jnp.where(rows.live & rows.at_start, 1, memory.passes + rows.live.astype(jnp.int32))
        needed = jnp.where(full, state.length, jnp.where(rows.live, block.end - block.begin, 0))
        end = jnp.where(full, state.answer_end, state.block_end)
        return Pass(rows.live, hidden, end), SparseMemory(kv, passes, begin), PassInfo(full, needed, width)

    def widths(self, model: DiffusionLM, sizes: Sizes, batch: int, canvas: int) -> Widths:
        """What its passes are compiled for."""
        wide, narrow = self._widths(model, sizes, batch, canvas)
        return Widths(narrow.width + wide.width, narrow.rows + wide.rows)

    def _widths(self, model: DiffusionLM, sizes: Sizes, batch: int, canvas: int) -> tuple[Widths, Widths]:
        """What full passes are compiled for, and what passes over blocks."""
        together = busy(model) if self.together is None else self.together
        beside = int(model.config.predicts_next)
        *narrow, widest = (min(width + beside, canvas) for width in block_widths(sizes))
        return (
            Widths.plan(canvas_widths(sizes, batch, canvas), batch, canvas, together),
            Widths.plan(tuple(narrow), batch, widest, together),
        )


def _sparse(model: DiffusionLM) -> SparseLM:
    """The same model, if it has a sparse cache."""
    if not hasattr(model, "init_sparse_cache"):
        raise ValueError(
            f"SparseCache needs a model with init_sparse_cache and with_window, such as Transformer; "
            f"{type(model).__name__} has none: use DualCache"
        )
    return cast(SparseLM, model)
