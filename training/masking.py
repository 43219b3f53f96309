"""What a training batch hides: answers as decoders meet them, and arithmetic on its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from training import vocabulary

ANSWER_LENGTH = 128
FIRST_MASKED = 0.5
"""The largest part of an answer that is masked at first, when no row is masked block-wise."""
# A row with one masked token out of a hundred would otherwise count a hundredfold and drown the others.
MAX_WEIGHT = 12.0
# Nothing is easier than the end-of-text tokens behind the first one, and nothing is more frequent.
_TAIL_WEIGHT = 0.1
# The lengths of the windows that block-wise decoders work on.
_WINDOWS = (8, 16, 32, 32, 32, 64)


_ID = {token: index for index, token in enumerate(vocabulary.tokens())}
_DIGITS = {_ID[digit] for digit in "0123456789"}


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem in ids."""

    prompt: list[int]
    answer: list[int]

    @property
    def length(self) -> int:
        """Tokens with the answer's first two end-of-text tokens: one that ends it and one that pads."""
        return len(self.prompt) + len(self.answer) + 2


@dataclasses.dataclass(frozen=True)
class Batch:
    """What one training step reads."""

    clean: np.ndarray  # [B, T] int32, the tokens
    noisy: np.ndarray  # [B, T] int32, the same with some answer tokens masked
    weight: np.ndarray  # [B, T] float32, what each masked position counts in the loss
    lengths: np.ndarray  # [B] int32, where the answer ends; what follows is padding
    # Of a cached pass: the tokens [B, T] when its block began, and the positions that have kept the keys and
    # values of then. None: nothing is kept.
    before: np.ndarray | None = None
    frozen: np.ndarray | None = None


jax.tree_util.register_dataclass(
    Batch, data_fields=["clean", "noisy", "weight", "lengths", "before", "frozen"], meta_fields=[]
)


def mask(
    rows: Sequence[Row],
    length: int,
    rng: np.random.Generator,
    *,
    most: float = 1.0,
    sums: float = 0.0,
    cached: bool = False,
    answer_length: int = ANSWER_LENGTH,
) -> Batch:
    """Pads answers with end-of-text to the canvas and masks them.

    Every other row is masked uniformly with probability t, the rest as block-wise decoding meets them: clean
    up to a window, masked with probability t inside it, wholly masked after it. t is uniform in (0, `most`);
    at `FIRST_MASKED` no row is masked block-wise, and at 1 every other. A masked token weighs 1 / t,
    t being the share of its answer that is masked and counts; tokens behind the first end-of-text count less.
    Of the rows with arithmetic, a share of `sums` hides one result instead, or all that was added.
    With `cached` all rows are block-wise and see everything before the window as it was when nothing of it
    was known (the prefix cache), half of them also everything behind it (the dual cache); only the window
    counts then. Answers have `answer_length` positions, or what is left of the canvas.
    """
    eos, mask_id = _ID[vocabulary.EOS], _ID[vocabulary.MASK]
    B, where = len(rows), np.arange(length)
    clean = np.full((B, length), eos, np.int32)
    start = np.array([len(row.prompt) for row in rows])[:, None]
    for i, row in enumerate(rows):
        clean[i, : len(row.prompt) + len(row.answer)] = row.prompt + row.answer
    lengths = np.minimum(start[:, 0] + answer_length, length).astype(np.int32)
    answer = (where < lengths[:, None]) & (where >= start)
    # One t from each B-th of its range: the same distribution with less variance per batch.
    t = most * (rng.permutation(B) + rng.random(B))[:, None] / B
    written = np.array([len(row.answer) for row in rows])[:, None]
    block = (rng.random((B, 1)) * (written + 1)).astype(int)
    on_grid = rng.random((B, 1)) < 0.5
    block = np.where(on_grid, block - block % 32, block)
    often = (most - FIRST_MASKED) / (1 - FIRST_MASKED)
    every_other = np.arange(B)[:, None] % 2 == 1
    blockwise = cached | (every_other & (rng.random((B, 1)) < often))
    begin = start + np.where(blockwise, block, 0)
    end = np.where(blockwise, begin + rng.choice(_WINDOWS, (B, 1)), length)
    draws = rng.random((B, length))
    inside = answer & (where >= begin) & (where < end)
    hidden = (inside & (draws < t)) | (answer & (where >= end))
    first = np.argmin(np.where(inside, draws, 2.0), axis=1)
    hidden[np.arange(B), first] = True  # something to learn in every row
    for i, row in enumerate(rows):
        if rng.random() < sums and (places := _arithmetic(row.answer, rng)):
            hidden[i] = False
            hidden[i, len(row.prompt) + np.array(places)] = True
    counted = hidden & inside if cached else hidden
    counts = answer * np.where(where <= start + written, 1.0, _TAIL_WEIGHT)
    share = (counts * counted).sum(1, keepdims=True) / counts.sum(1, keepdims=True)
    weight = (counts * counted * np.minimum(1 / share, MAX_WEIGHT) / counts.sum()).astype(np.float32)
    noisy = np.where(hidden, mask_id, clean)
    if not cached:
        return Batch(clean, noisy, weight, lengths)
    before = np.where(answer & (where >= begin), mask_id, clean)
    return Batch(clean, noisy, weight, lengths, before, (where < begin) | (every_other & (where >= end)))


def _arithmetic(answer: Sequence[int], rng: np.random.Generator) -> list[int]:
    """The places of one result, or of all numbers that were added; none without arithmetic."""
    added, results = find_sums(answer)
    return results[rng.integers(len(results))] if results and rng.random() < 0.5 else added


def find_sums(answer: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """The place of each number that is added or taken, and those of each two-digit result and its copy."""
    equals, gave, has, line, final = (_ID[token] for token in ("=", "gave", "has", "\n", "####"))
    added, results = [], []
    for i, token in enumerate(answer):
        computed = token == equals and answer[i - 1] in _DIGITS  # a program's names stand there too
        if token == gave:  # giver gave taker 4
            added.append(i + 2)
        if computed:
            added.append(i - 1)
        if computed or token == has:
            results.append([i + 1, i + 2])
            if answer[i + 3 : i + 4] == [line]:
                copy = i + 4 + (answer[i + 4] == final)
                results[-1] += [copy, copy + 1]
    return added, results
