"""Masked training batches, a pure function of the seed: a resumed run sees what an unbroken one would.

Axis letters: B rows, T canvas positions.
"""

from __future__ import annotations

import dataclasses
import itertools
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
# At first few tokens are masked: what the others tell is learned soon then, and hardly where all are masked.
_MASKING_ROUNDS = 100
_FIRST_MASKED = 0.5
# Sums of small numbers are learned first: which digit to look at shows before the whole table is known.
EASY_ROUNDS = 300
"""From here on all problems have the level of the held-out ones; easier ones fade out before."""
# A sum is hard to find among all that can be guessed otherwise, so some rows hide one sum and nothing else.
_SUM_SHARE = 0.5
# A row with one masked token out of a hundred would otherwise count a hundredfold and drown the others.
_MAX_WEIGHT = 12.0
# Nothing is easier than the end-of-text tokens behind the first one, and nothing is more frequent.
_TAIL_WEIGHT = 0.1
# The lengths of the windows that block-wise decoders work on.
_WINDOWS = (8, 16, 32, 32, 32, 64)


_ID = {token: index for index, token in enumerate(tokenizer.vocabulary())}


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
        rng = np.random.default_rng((self.seed, index))
        stream = task.problems((self.seed, index), held_out=False, easiest=min(1.0, index / EASY_ROUNDS))
        waiting = encode(self._tokenizer, list(itertools.islice(stream, _ROUND)))
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
        assert not rest, f"a problem of {rest[0].length} tokens is longer than every bucket"
        most = min(1.0, _FIRST_MASKED + (1 - _FIRST_MASKED) * index / _MASKING_ROUNDS)
        sums = _SUM_SHARE * max(0.0, 1 - index / EASY_ROUNDS)
        return [mask(rows, length, rng, most, sums) for length, rows in chunks]


def encode(encoder: Tokenizer, problems: Sequence[task.Problem]) -> list[Row]:
    """Prompts through the chat template and answers, as ids."""
    prompts = [f"{tokenizer.BOS}{tokenizer.USER}{p.prompt}{tokenizer.ASSISTANT}" for p in problems]
    answers = [p.answer for p in problems]
    pairs = zip(encoder.encode_batch(prompts), encoder.encode_batch(answers), strict=True)
    return [Row(prompt.ids, answer.ids) for prompt, answer in pairs]


def mask(
    rows: Sequence[Row], length: int, rng: np.random.Generator, most: float = 1.0, sums: float = 0.0
) -> Batch:
    """Pads answers with end-of-text to the canvas and masks them.

    Every other row is masked uniformly with probability t, the rest as block-wise decoding meets them: clean
    up to a window, masked with probability t inside it, wholly masked after it. t is uniform in (0, `most`);
    at `_FIRST_MASKED` no row is masked block-wise, and at 1 every other. A masked token weighs 1 / t,
    t being the share of its answer that is really masked; tokens behind the first end-of-text count less.
    Of the rows with arithmetic, a share of `sums` hides one result instead.
    """
    eos, mask_id = _ID[tokenizer.EOS], _ID[tokenizer.MASK]
    B, where = len(rows), np.arange(length)
    clean = np.full((B, length), eos, np.int32)
    start = np.array([len(row.prompt) for row in rows])[:, None]
    for i, row in enumerate(rows):
        clean[i, : len(row.prompt) + len(row.answer)] = row.prompt + row.answer
    valid = where < start + ANSWER_LENGTH
    answer = valid & (where >= start)
    # One t from each B-th of its range: the same distribution with less variance a batch.
    t = most * (rng.permutation(B) + rng.random(B))[:, None] / B
    written = np.array([len(row.answer) for row in rows])[:, None]
    block = (rng.random((B, 1)) * (written + 1)).astype(int)
    on_grid = rng.random((B, 1)) < 0.5
    block = np.where(on_grid, block - block % 32, block)
    often = (most - _FIRST_MASKED) / (1 - _FIRST_MASKED)
    blockwise = (np.arange(B)[:, None] % 2 == 1) & (rng.random((B, 1)) < often)
    begin = start + np.where(blockwise, block, 0)
    end = np.where(blockwise, begin + rng.choice(_WINDOWS, (B, 1)), length)
    draws = rng.random((B, length))
    hidden = answer & (((where >= begin) & (where < end) & (draws < t)) | (where >= end))
    first = np.argmin(np.where(answer & (where >= begin), draws, 2.0), axis=1)
    hidden[np.arange(B), first] = True  # something to learn in every row
    for i, row in enumerate(rows):
        computed = find_sums(row.answer)
        if computed and rng.random() < sums:
            hidden[i] = False
            hidden[i, len(row.prompt) + np.array(computed[rng.integers(len(computed))])] = True
    counts = answer * np.where(where <= start + written, 1.0, _TAIL_WEIGHT)
    share = (counts * hidden).sum(1, keepdims=True) / counts.sum(1, keepdims=True)
    weight = counts * hidden * np.minimum(1 / share, _MAX_WEIGHT) / counts.sum()
    return Batch(clean, np.where(hidden, mask_id, clean), weight.astype(np.float32), valid)


def find_sums(answer: Sequence[int]) -> list[list[int]]:
    """The places of each two-digit result in an answer, with those of its copy in the next line."""
    equals, has, line, final = (_ID[token] for token in ("=", "has", "\n", "####"))
    found = []
    for i, token in enumerate(answer):
        if token in (equals, has):
            found.append([i + 1, i + 2])
            if answer[i + 3 : i + 4] == [line]:
                copy = i + 4 + (answer[i + 4] == final)
                found[-1] += [copy, copy + 1]
    return found


def fixed_masks(problems: Sequence[task.Problem]) -> Batch:
    """One batch of given problems with masks that never change, for comparing losses over time."""
    return mask(encode(tokenizer.build(), problems), BUCKETS[-1][0], np.random.default_rng(0))
