"""One row of a traced decode on the host: NumPy, cut to what happened.

What `plots` draws and `viewer` plays. What the policies told is here under the names that they gave it,
whoever wrote them; how it is drawn follows from its shape.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recording import PackedFlags
from depcap_jax.decoding.state import DecodeResult


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of the answer."""

    start: int
    """Its first position."""
    size: int
    first_pass: int
    """The pass, from 1, that opened it."""

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
    """[G] int: the pass that committed it, the last one if it was revoked between; 0 where none did."""
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
    partition: Mapping[str, np.ndarray]
    """What the partition told at each pass, [F, ...] by its name; 0 where it was not asked."""
    select: Mapping[str, np.ndarray]
    """What the selection told at each pass."""
    cache: Mapping[str, np.ndarray]
    """What the cache told at each pass."""

    @property
    def reach(self) -> int:
        """One past the last position that a block covers."""
        return max((block.end for block in self.blocks), default=0)

    @property
    def commit_confidence(self) -> np.ndarray:
        """[G] float: the confidence at which each position was committed; NaN where it was not."""
        return _at_commit(self.confidence, self.commit_step, np.nan)

    @property
    def commits(self) -> np.ndarray:
        """[F] int: how many tokens each pass committed that were not revoked later."""
        return np.bincount(self.commit_step, minlength=self.nfe + 1)[1:]

    def revoked_later(self, step: int) -> np.ndarray:
        """The positions of the block that stood committed during a pass and are open again later."""
        there, block = np.zeros(len(self.tokens), bool), self.block_at(step)
        there[block.start : block.end] = True
        before, after = (self.guess[:step] >= 0).any(axis=0), (self.guess[step:] >= 0).any(axis=0)
        return np.flatnonzero(there & before & after & (self.guess[step - 1] < 0))

    def block_at(self, step: int) -> Block:
        """The block that a pass worked on."""
        return [block for block in self.blocks if block.first_pass <= step][-1]

    def partition_signals(self, block: Block) -> dict[str, np.ndarray]:
        """What the partition told of each position ahead when it cut a block: numbers, by name.

        They begin at the block's start and end with the answer, or where the partition stopped looking.
        """
        return self._over_positions(self.partition, block.first_pass, len(self.tokens) - block.start)

    def selection_signals(self, step: int) -> dict[str, np.ndarray]:
        """What the selection told of each position of the block at a pass: numbers, by name."""
        return self._over_positions(self.select, step, self.block_at(step).size)

    def pairs(self, step: int) -> dict[str, np.ndarray]:
        """The pairs i < j of positions [E, 2] that the selection flagged at a pass, by name."""
        block = self.block_at(step)
        return {
            name: block.start + np.argwhere(np.triu(flags[step - 1, : block.size, : block.size], 1))
            for name, flags in self.select.items()
            if flags.ndim == 3 and flags.dtype == bool
        }

    def facts(self, step: int) -> dict[str, float]:
        """The single numbers that the policies told of a pass, by name; `select.value` where two have it."""
        parts = {"partition": self.partition, "select": self.select, "cache": self.cache}
        numbers = [
            (part, name, array[step - 1].item())
            for part, info in parts.items()
            for name, array in info.items()
            if array.ndim == 1
        ]
        uses = collections.Counter(name for _, name, _ in numbers)
        return {f"{part}.{name}" if uses[name] > 1 else name: number for part, name, number in numbers}

    @staticmethod
    def _over_positions(info: Mapping[str, np.ndarray], step: int, count: int) -> dict[str, np.ndarray]:
        return {name: array[step - 1, :count] for name, array in info.items() if array.ndim == 2}


def replay(result: DecodeResult, row: int = 0) -> Replay:
    """Reads one row of a result that `generate(..., trace=True)` returned.

    Raises:
      ValueError: if the result has no trace or no such row.
    """
    trace = getattr(result, "trace", None)
    if trace is None:
        raise ValueError("this result has no trace; decode with generate(..., trace=True)")
    check_integer("row", row, 0, len(result.nfe) - 1)
    nfe = int(result.nfe[row])
    commit_step, guess = np.asarray(result.commit_step[row]), np.asarray(trace.guess[row])[:nfe]
    blocks = zip(trace.block_starts[row], result.block_sizes[row], trace.block_passes[row], strict=True)
    return Replay(
        nfe=nfe,
        tokens=_at_commit(guess, commit_step, -1),
        commit_step=commit_step,
        visible=int(result.lengths[row]),
        confidence=np.where(guess >= 0, np.asarray(trace.confidence[row])[:nfe], np.nan),
        guess=guess,
        alternatives=np.asarray(trace.alternatives[row]),
        alternative_confidence=np.asarray(trace.alternative_confidence[row]),
        blocks=tuple(Block(*map(int, block)) for block in blocks if block[1]),
        partition=dict(_named(trace.partition, row, nfe)),
        select=dict(_named(trace.select, row, nfe)),
        cache=dict(_named(trace.cache, row, nfe)),
    )


def _at_commit(passes: np.ndarray, commit_step: np.ndarray, missing: float) -> np.ndarray:
    """What [F, G] says of each position at the pass that committed it; `missing` where none did."""
    before = np.pad(passes, ((1, 0), (0, 0)), constant_values=missing)
    return before[commit_step, np.arange(len(commit_step))]


def _named(info: Any, row: int, nfe: int) -> Iterator[tuple[str, np.ndarray]]:
    """Each leaf of what a policy told, for one row, under the dotted path to it."""

    def packed(leaf: Any) -> bool:
        return isinstance(leaf, PackedFlags)

    for path, leaf in jax.tree_util.tree_leaves_with_path(info, is_leaf=packed):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
        array = leaf.unpack() if packed(leaf) else np.asarray(leaf)
        yield name, array[row, :nfe]
