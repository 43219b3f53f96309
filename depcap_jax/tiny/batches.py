"""Masked training batches, a pure function of the seed: a resumed run sees what an unbroken one would.

Axis letters: B rows, T canvas positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from depcap_jax.tiny import task, tokenizer

ANSWER_LENGTH = 128
# Canvas length and rows: about the same number of tokens in each, so that one step costs about the same.
BUCKETS = ((32, 64), (48, 42), (72, 28), (112, 18))
FULL = (168, 12)
_ROUND = 512
# A decoder always faces the full length, where a short answer drowns in masks: that must be seen often.
_FULL_BATCHES = 2
_WIDENING_ROUNDS = 50
# `code` alone was at its floor after 300 steps, and far from it among the others after 1,700.
LESSONS = (
    (20, ("choose", "shuffle")),
    (14, ("code",)),
    (16, ("shuffle", "choose")),
    (16, ("steps",)),
    (16, ("story",)),
    (20, ("math",)),
)
"""How many rounds turn mainly on which kinds, one lesson after the other; then all kinds by their shares."""
_LESSON_SHARE = 0.7
# A row with one masked token out of a hundred would otherwise count a hundredfold and drown the others.
_MAX_WEIGHT = 12.0
# The lengths of the windows that block-wise decoders work on.
_WINDOWS = (8, 16, 32, 32, 32, 64)


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
    weight: np.ndarray  # [B, T] float32, what each position counts in the loss; 0 where nothing is masked
    valid: np.ndarray  # [B, T] bool, False beyond the answer's length


class Batches:
    """The training data of one seed, in rounds of a few batches."""

    def __init__(self, seed: int):
        self.seed = seed
        self._tokenizer = tokenizer.build()

    def round(self, index: int) -> list[Batch]:
        """The batches of round `index`, in a random order of lengths."""
        level = min(1.0, 0.2 + index / _WIDENING_ROUNDS)
        rng = np.random.default_rng((self.seed, index))
        kinds = lesson(index)
        streams = {
            kind: task.problems((self.seed, index), held_out=False, kind=kind, level=level)
            for kind in (None, *kinds)
        }
        order = [
            kinds[i % len(kinds)] if kinds and share < _LESSON_SHARE else None
            for i, share in enumerate(rng.random(_ROUND))
        ]
        waiting = encode(self._tokenizer, [next(streams[kind]) for kind in order])
        length, rows = FULL
        whole = _FULL_BATCHES * rows
        chunks = [(length, waiting[i : i + rows]) for i in range(0, whole, rows)]
        spare, rest = waiting, waiting[whole:]
        for length, rows in BUCKETS:
            fitting = [row for row in rest if row.length <= length]
            rest = [row for row in rest if row.length > length]
            if (length, rows) == BUCKETS[-1] and len(fitting) % rows:  # rare lengths must not be dropped
                fitting += spare[: rows - len(fitting) % rows]
            whole = len(fitting) - len(fitting) % rows
            chunks += [(length, fitting[i : i + rows]) for i in range(0, whole, rows)]
            rest += fitting[whole:]  # the odd ones ride in the next longer bucket
        rng.shuffle(chunks)  # type: ignore[arg-type]  # a list will do
        return [mask(rows, length, rng) for length, rows in chunks]


def lesson(index: int) -> tuple[str, ...]:
    """The kinds that round `index` turns on; none after the last lesson."""
    for rounds, kinds in LESSONS:
        if index < rounds:
            return kinds
        index -= rounds
    return ()


def encode(encoder: Tokenizer, problems: Sequence[task.Problem]) -> list[Row]:
    """Prompts through the chat template and answers, as ids."""
    prompts = [f"{tokenizer.BOS}{tokenizer.USER}{p.prompt}{tokenizer.ASSISTANT}" for p in problems]
    answers = [p.answer for p in problems]
    pairs = zip(encoder.encode_batch(prompts), encoder.encode_batch(answers), strict=True)
    return [Row(prompt.ids, answer.ids) for prompt, answer in pairs]


def mask(rows: Sequence[Row], length: int, rng: np.random.Generator) -> Batch:
    """Pads answers with end-of-text to the canvas and masks them.

    Every other row is masked uniformly with probability t, the rest as block-wise decoding meets them: clean
    up to a window, masked with probability t inside it, wholly masked after it. A masked token weighs 1 / t,
    t being the share of its answer that is really masked.
    """
    eos, mask_id = (tokenizer.SPECIAL.index(token) for token in (tokenizer.EOS, tokenizer.MASK))
    B, where = len(rows), np.arange(length)
    clean = np.full((B, length), eos, np.int32)
    start = np.array([len(row.prompt) for row in rows])[:, None]
    for i, row in enumerate(rows):
        clean[i, : len(row.prompt) + len(row.answer)] = row.prompt + row.answer
    valid = where < start + ANSWER_LENGTH
    answer = valid & (where >= start)
    # One t from each B-th of (0, 1): the same distribution with less variance a batch.
    t = (rng.permutation(B) + rng.random(B))[:, None] / B
    written = np.array([len(row.answer) for row in rows])[:, None]
    block = (rng.random((B, 1)) * (written + 1)).astype(int)
    on_grid = rng.random((B, 1)) < 0.5
    block = np.where(on_grid, block - block % 32, block)
    begin = start + np.where(np.arange(B)[:, None] % 2, block, 0)
    end = np.where(np.arange(B)[:, None] % 2, begin + rng.choice(_WINDOWS, (B, 1)), length)
    draws = rng.random((B, length))
    hidden = answer & (((where >= begin) & (where < end) & (draws < t)) | (where >= end))
    first = np.argmin(np.where(answer & (where >= begin), draws, 2.0), axis=1)
    hidden[np.arange(B), first] = True  # something to learn in every row
    share = hidden.sum(1, keepdims=True) / answer.sum(1, keepdims=True)
    weight = hidden * np.minimum(1 / share, _MAX_WEIGHT) / answer.sum()
    return Batch(clean, np.where(hidden, mask_id, clean), weight.astype(np.float32), valid)


def fixed_masks(problems: Sequence[task.Problem]) -> Batch:
    """One batch of given problems with masks that never change, for comparing losses over time."""
    return mask(encode(tokenizer.build(), problems), BUCKETS[-1][0], np.random.default_rng(0))
