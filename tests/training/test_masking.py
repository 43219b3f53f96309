"""What training batches hide."""

import jax
import numpy as np
import pytest

from training import task, vocabulary
from training.batches import encode
from training.masking import ANSWER_LENGTH, Batch, find_sums, mask

MASK = vocabulary.SPECIAL.index(vocabulary.MASK)


def rows(count: int = 40):
    stream = task.problems(5, held_out=False)
    return encode(vocabulary.build(), [next(stream) for _ in range(count)])


def test_masks_cover_answers_only():
    drawn = rows()
    batch = mask(drawn, 168, np.random.default_rng(0))
    hidden = batch.noisy == MASK
    np.testing.assert_array_equal(hidden, batch.weight > 0)
    np.testing.assert_array_equal(np.where(hidden, batch.clean, batch.noisy), batch.clean)
    for i, row in enumerate(drawn):
        end = len(row.prompt) + ANSWER_LENGTH
        assert not hidden[i, : len(row.prompt)].any()
        assert not hidden[i, end:].any()
        assert hidden[i].any()
        assert batch.lengths[i] == min(end, 168)


def test_every_other_row_is_masked_as_blockwise_decoding_meets_it():
    batch = mask(rows(200), 168, np.random.default_rng(0))
    hidden = batch.noisy == MASK
    ends = [(hidden[i] | (np.arange(168) >= batch.lengths[i]))[-20:].all() for i in range(200)]
    assert all(ends[1::2])
    assert not all(ends[::2])


def test_masks_are_few_at_first():
    share = {}
    for most in (0.5, 1.0):
        batch = mask(rows(200), 168, np.random.default_rng(0), most=most)
        share[most] = (batch.noisy == MASK).sum(1) / ANSWER_LENGTH
    assert share[0.5].max() < 0.65
    assert share[0.5].mean() == pytest.approx(0.25, abs=0.03)
    assert share[1.0].mean() > 0.5


def test_sums_are_found_with_their_copies():
    encoder, tokens = vocabulary.build(), vocabulary.tokens()

    def sums(answer: str) -> tuple[str, list[str]]:
        ids = encoder.encode(answer).ids
        added, results = find_sums(ids)
        return read(ids, added), [read(ids, places) for places in results]

    def read(ids, places):
        return "".join(tokens[ids[i]] for i in places)

    assert sums("36 + 5 = 41\n41 - 2 = 39\n#### 39") == ("52", ["4141", "3939"])
    assert sums("14 + 7 = 21\n21 + 8 = 29") == ("78", ["2121", "29"])
    told = "Leo had 20 pens. Then Sue came. Sue gave Leo 5 pens. Leo thanked Sue. So Leo has 25 pens."
    assert sums(told) == ("5", ["25"])
    assert sums("I choose cat, dog.") == ("", [])
    assert sums("def f(x):\n    y = x + 3\n    return y") == ("", [])


def test_some_rows_hide_one_result_or_all_that_was_added():
    drawn = rows(200)
    batch = mask(drawn, 168, np.random.default_rng(0), sums=1.0)
    hides_a_result = set()
    for row, line in zip(drawn, batch.noisy == MASK, strict=True):
        added, results = find_sums(row.answer)
        if results:
            hidden = (np.flatnonzero(line) - len(row.prompt)).tolist()
            assert hidden in [*results, added]
            hides_a_result.add(hidden in results)
    assert hides_a_result == {True, False}


def test_a_cached_batch_counts_its_window_alone_and_knew_nothing_of_it_before():
    drawn = rows(100)
    batch = mask(drawn, 168, np.random.default_rng(0), cached=True)
    assert batch.before is not None
    assert batch.frozen is not None
    keeps_the_end = []
    for i, row in enumerate(drawn):
        end = min(168, len(row.prompt) + ANSWER_LENGTH)
        counted, frozen = np.flatnonzero(batch.weight[i]), batch.frozen[i]
        begin = np.argmin(frozen)
        assert len(row.prompt) <= begin <= counted[0]
        assert counted[-1] < begin + 64
        np.testing.assert_array_equal(batch.before[i, :begin], batch.clean[i, :begin])
        assert (batch.before[i, begin:end] == MASK).all()
        # What is frozen has not changed since, so that keys and values are old only through what they saw.
        np.testing.assert_array_equal(batch.before[i][frozen], batch.noisy[i][frozen])
        assert not frozen[counted].any()
        keeps_the_end.append(frozen[-1])
    assert 40 <= sum(keeps_the_end) <= 60


def test_weights_count_every_answer_by_its_length():
    """Each row's weights sum to its share of all tokens that count, unless very few are masked."""
    drawn = rows()
    batch = mask(drawn, 168, np.random.default_rng(0))
    counts = np.zeros(batch.clean.shape)
    for i, row in enumerate(drawn):
        start, end = len(row.prompt), len(row.prompt) + len(row.answer) + 1
        counts[i, start : start + ANSWER_LENGTH] = 0.1
        counts[i, start:end] = 1.0
    share = (counts * (batch.noisy == MASK)).sum(1) / counts.sum(1)
    often = share > 0.1
    assert often.sum() > 30
    np.testing.assert_allclose(batch.weight.sum(1)[often], (counts.sum(1) / counts.sum())[often], rtol=0.03)


def test_a_batch_is_a_pytree():
    batch = mask(rows(2), 168, np.random.default_rng(0))
    assert isinstance(jax.tree.map(np.asarray, batch), Batch)
