"""Masked training batches, a pure function of the seed: a resumed run sees what an unbroken one would."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from tokenizers import Tokenizer

from training import task, vocabulary
from training.masking import FIRST_MASKED, Batch, Row, mask

# Canvas length and rows: about the same number of tokens in each, so that one step costs about the same.
BUCKETS = ((32, 64), (48, 42), (72, 28), (112, 18))
FULL = (168, 12)
LONG = ((128, 16), (192, 10), (256, 8))
"""The same for prompts that ask for several things."""
_ROUND = 512
# Which number an answer stands under is learned sooner where there are few: from short ones to long ones.
_LONG_ROUND = 208
_LONG_ROUNDS = 12
# A decoder always faces the full length, where a short answer drowns in masks: that must be seen often.
_FULL_BATCHES = 2
# At first few tokens are masked: what the others tell is learned soon then, and hardly where all are masked.
_MASKING_ROUNDS = 100
# Short problems, and in `math` small numbers, come first: which digit to look at shows before the whole
# table is known.
EASY_ROUNDS = 300
"""From here on all problems have the level of the held-out ones; easier ones fade out before."""
# Arithmetic is hard to find among all that can be guessed otherwise, so some rows hide nothing else. What was
# added must be learned as well as what comes out: a decoder may commit both totals first.
_FIRST_SUMS, _LAST_SUMS = 0.6, 0.3
# That needs many examples in a step: at first, this many batches beside each other one have nothing else.
_FIRST_DRILLS = 0.6
# A cached pass costs a third more; without it the prompt's positions keep track of the answer, which a
# cache hides.
_CACHED_SHARE = 0.5


class Batches:
    """The training data of one seed, in rounds of a few batches."""

    def __init__(self, seed: int):
        self.seed = seed
        self._tokenizer = vocabulary.build()

    def round(self, index: int) -> list[Batch]:
        """The batches of round `index`, in a random order of lengths."""
        rng = np.random.default_rng((self.seed, index))
        done = min(1.0, index / EASY_ROUNDS)
        stream = task.problems((self.seed, index), held_out=False, easiest=done)
        waiting = encode(self._tokenizer, list(itertools.islice(stream, _ROUND)))
        length, rows = FULL
        whole = _FULL_BATCHES * rows
        chunks = [(length, waiting[i : i + rows]) for i in range(0, whole, rows)]
        chunks += _by_length(waiting[whole:], BUCKETS, spare=waiting)
        if index >= EASY_ROUNDS:
            level = min(1.0, (index - EASY_ROUNDS) / _LONG_ROUNDS)
            stream = task.several((self.seed, index), held_out=False, level=level)
            asked = encode(self._tokenizer, list(itertools.islice(stream, _LONG_ROUND)))
            chunks += _by_length(asked, LONG, spare=asked)
        most = min(1.0, FIRST_MASKED + (1 - FIRST_MASKED) * index / _MASKING_ROUNDS)
        sums = _FIRST_SUMS + (_LAST_SUMS - _FIRST_SUMS) * done
        made = []
        for length, rows in chunks:
            if rng.random() < _CACHED_SHARE * done:
                made.append(mask(rows, length, rng, most=most, cached=True))
            else:
                made.append(mask(rows, length, rng, most=most, sums=sums))
        drills = int(rng.binomial(len(made), _FIRST_DRILLS * (1 - done)))
        made += self._drills(index, drills, rng)
        return [made[i] for i in rng.permutation(len(made))]

    def _drills(self, index: int, count: int, rng: np.random.Generator) -> list[Batch]:
        """Batches of arithmetic whose numbers are free, with results or what was added hidden."""
        length, rows = BUCKETS[len(BUCKETS) // 2]
        streams = [
            task.problems((self.seed, index, "drill"), held_out=False, kind=kind, easiest=0.0)
            for kind in ("steps", "story")
        ]
        mixed = itertools.chain.from_iterable(zip(*streams, strict=True))
        fitting = (
            row for problem in mixed for row in encode(self._tokenizer, [problem]) if row.length <= length
        )
        return [mask(list(itertools.islice(fitting, rows)), length, rng, sums=1.0) for _ in range(count)]


def _by_length(
    rest: Sequence[Row], buckets: Sequence[tuple[int, int]], *, spare: Sequence[Row]
) -> list[tuple[int, list[Row]]]:
    """Rows in chunks of a canvas each, the shortest that fits; the last one is filled from `spare`."""
    chunks: list[tuple[int, list[Row]]] = []
    for length, rows in buckets:
        fitting = [row for row in rest if row.length <= length]
        rest = [row for row in rest if row.length > length]
        if (length, rows) == buckets[-1] and len(fitting) % rows:  # rare lengths must not be dropped
            fitting += spare[: rows - len(fitting) % rows]
        whole = len(fitting) - len(fitting) % rows
        chunks += [(length, fitting[i : i + rows]) for i in range(0, whole, rows)]
        rest += fitting[whole:]  # the odd ones ride in the next longer bucket
    assert not rest, f"a problem of {rest[0].length} tokens is longer than every bucket"
    return chunks


def encode(encoder: Tokenizer, problems: Sequence[task.Problem]) -> list[Row]:
    """Prompts through the chat template and answers, as ids."""
    prompts = [f"{vocabulary.BOS}{vocabulary.USER}{p.prompt}{vocabulary.ASSISTANT}" for p in problems]
    answers = [p.answer for p in problems]
    pairs = zip(encoder.encode_batch(prompts), encoder.encode_batch(answers), strict=True)
    return [Row(prompt.ids, answer.ids) for prompt, answer in pairs]


def fixed_masks(problems: Sequence[task.Problem], length: int) -> Batch:
    """One batch of given problems with masks that never change, for comparing losses over time."""
    return mask(encode(vocabulary.build(), problems), length, np.random.default_rng(0))
