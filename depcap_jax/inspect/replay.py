"""One row of a traced decode on the host: NumPy, cut to what happened.

What `plots` draws and `viewer` plays. Axis letters: G answer positions, F forward passes, W window
positions, A alternatives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from depcap_jax.decoding.policy import check_count
from depcap_jax.decoding.state import DecodeResult


@dataclasses.dataclass(frozen=True)
class Block:
    """A block, and the signals that it was cut by; without such signals they are None."""

    start: int
    """Its first position in the answer."""
    size: int
    begun: int
    """The pass, from 1, that opened it."""
    influence: np.ndarray | None
    """[W] I_k over the window from `start`, nats; NaN in the first block, which has no block before it."""
    uncertainty: np.ndarray | None
    """[W] H_k, nats."""
    score: np.ndarray | None
    """[W] S_k; NaN in the first block."""

    @property
    def end(self) -> int:
        """One past its last position."""
        return self.start + self.size


@dataclasses.dataclass(frozen=True)
class Replay:
    """What a row's decode did, pass by pass. Passes are counted from 1, positions from the answer's start."""

    nfe: int
    """Forward passes, F."""
    tokens: np.ndarray
    """[G] int: what was committed, also behind the end of the text; -1 where nothing was."""
    commit_step: np.ndarray
    """[G] int: the pass that committed it; 0 where none did."""
    visible: int
    """Tokens before the end of the text."""
    confidence: np.ndarray
    """[F, G] float: of each candidate at each pass; NaN where there is no candidate."""
    guess: np.ndarray
    """[F, G] int: the token it would have been committed with; -1 where there is no candidate."""
    alternatives: np.ndarray
    """[G, A] int: the likeliest tokens when the position was committed; -1 if it was not."""
    alternative_confidence: np.ndarray
    """[G, A] float: their probabilities."""
    blocks: tuple[Block, ...]
    conflicts: tuple[np.ndarray, ...] | None
    """For each pass its conflicts [E, 2]: pairs i < j of positions. None if the selection knows none."""

    @property
    def reach(self) -> int:
        """One past the last position that a block covers."""
        return max((block.end for block in self.blocks), default=0)

    @property
    def commit_confidence(self) -> np.ndarray:
        """[G] float: the confidence at which each position was committed; NaN where it was not."""
        step, position = np.maximum(self.commit_step - 1, 0), np.arange(len(self.commit_step))
        if self.nfe == 0:
            return np.full(len(position), np.nan, np.float32)
        return np.where(self.commit_step > 0, self.confidence[step, position], np.nan)

    @property
    def commits(self) -> np.ndarray:
        """[F] int: how many tokens each pass committed."""
        return np.bincount(self.commit_step, minlength=self.nfe + 1)[1:]

    def block_of(self, position: int) -> int | None:
        """The index of the block that covers a position; None if none does."""
        inside = (i for i, block in enumerate(self.blocks) if block.start <= position < block.end)
        return next(inside, None)


def replay(result: DecodeResult, row: int = 0) -> Replay:
    """Reads one row of a result that `generate(..., trace=True)` returned.

    Raises:
      ValueError: if the result has no trace or no such row.
    """
    trace = getattr(result, "trace", None)
    if trace is None:
        raise ValueError("this result has no trace; decode with generate(..., trace=True)")
    check_count("row", row, 0, len(result.nfe) - 1)
    nfe = int(result.nfe[row])
    commit_step, guess = np.asarray(result.commit_step[row]), np.asarray(trace.guess[row])[:nfe]
    position = np.arange(len(commit_step))
    tokens = np.full(len(position), -1)
    done = commit_step > 0
    tokens[done] = guess[commit_step[done] - 1, position[done]]
    blocks = tuple(_blocks(result, row))
    return Replay(
        nfe=nfe,
        tokens=tokens,
        commit_step=commit_step,
        visible=int(result.lengths[row]),
        confidence=np.asarray(trace.confidence[row])[:nfe],
        guess=guess,
        alternatives=np.asarray(trace.alternatives[row]),
        alternative_confidence=np.asarray(trace.alternative_confidence[row]),
        blocks=blocks,
        conflicts=_conflicts(trace.conflicts, row, nfe, blocks),
    )


def _blocks(result: DecodeResult, row: int) -> Iterable[Block]:
    trace: Any = result.trace
    sizes, starts, begun = (
        np.asarray(x[row]) for x in (result.block_sizes, trace.block_starts, trace.block_passes)
    )
    signals = None if trace.signals is None else [np.asarray(x[row]) for x in trace.signals]
    for number in np.flatnonzero(sizes):
        cut: list[np.ndarray | None] = [None, None, None]
        if signals is not None:
            width = int(np.isfinite(signals[1][number]).sum())  # the uncertainty is known of the whole window
            cut = [x[number, :width] for x in signals]
        yield Block(int(starts[number]), int(sizes[number]), int(begun[number]), *cut)


def _conflicts(packed: Any, row: int, nfe: int, blocks: Sequence[Block]) -> tuple[np.ndarray, ...] | None:
    if packed is None:
        return None
    bits = np.unpackbits(np.asarray(packed[row])[:nfe], axis=-1)
    begun = np.array([block.begun for block in blocks])
    found = []
    for step, edges in enumerate(bits, start=1):
        start = blocks[int(np.searchsorted(begun, step, side="right")) - 1].start
        found.append(start + np.argwhere(np.triu(edges[:, : edges.shape[0]], 1)))
    return tuple(found)
