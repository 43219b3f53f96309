"""The field's other selections, each against a few lines of NumPy in float64 and a case made by hand."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from predictions import log_softmax, prediction_of

import depcap_jax as dc

ASK = jax.jit(lambda rule, *arguments: rule(*arguments))
EVERYTHING = dc.Reads(entropy=True, top_k=2)
WIDTH = 12
seeds = st.integers(0, 2**32 - 1)


def random_case(seed: int, sharpness: float = 4.0) -> tuple[np.ndarray, np.ndarray]:
    """Logits [1, 12, 32], of which the last id is the mask, and candidates [1, 12]."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(1, WIDTH, 32)) * sharpness).astype(np.float32)
    logits[..., -1] = -30.0
    return logits, rng.random((1, WIDTH)) < 0.7


def choose(rule, logits, candidates, memory=None) -> np.ndarray:
    start = np.zeros(len(logits), np.int32)
    return np.asarray(ASK(rule, prediction_of(logits, EVERYTHING), candidates, start, memory)[0])[0]


def confidences(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits)[0]).max(axis=-1)


def with_confidences(*values: float) -> np.ndarray:
    """Logits [1, L, 32] whose most likely tokens have these probabilities, the rest being spread evenly."""
    logits = np.zeros((1, len(values), 32), np.float32)
    for i, c in enumerate(values):
        logits[0, i] = np.log((1 - c) / 30)
        logits[0, i, i % 31], logits[0, i, 31] = np.log(c), -60.0
    return logits


def ranked(score: np.ndarray, candidates: np.ndarray) -> list[int]:
    return sorted(np.flatnonzero(candidates).tolist(), key=lambda i: (-score[i], i))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, threshold=st.floats(0.3, 1.0), relaxed=st.floats(0.1, 1.0))
def test_local_leap(seed, threshold, relaxed):
    logits, candidates = random_case(seed)
    c, expected = confidences(logits), np.zeros(WIDTH, bool)
    anchors = [i for i in range(WIDTH) if candidates[0, i] and c[i] >= threshold]
    for i in np.flatnonzero(candidates[0]):
        near = any(abs(i - j) <= 2 for j in anchors)
        expected[i] = c[i] >= threshold or (near and c[i] >= relaxed)
    rule = dc.LocalLeap(threshold=threshold, relaxed_threshold=relaxed, radius=2)
    np.testing.assert_array_equal(choose(rule, logits, candidates), expected)


def test_local_leap_by_hand():
    logits = with_confidences(0.8, 0.95, 0.8, 0.7, 0.8, 0.8)
    everything = np.ones((1, 6), bool)
    assert choose(dc.LocalLeap(radius=2), logits, everything).tolist() == [1, 1, 1, 0, 0, 0]
    assert choose(dc.LocalLeap(radius=3), logits, everything).tolist() == [1, 1, 1, 0, 1, 0]


@settings(max_examples=40, deadline=None)
@given(seed=seeds, threshold=st.floats(0.3, 1.0), low=st.floats(0.0, 1.0))
def test_hierarchy(seed, threshold, low):
    logits, candidates = random_case(seed)
    c, expected, run = confidences(logits), np.zeros(WIDTH, bool), []
    for i in range(WIDTH + 1):
        if i < WIDTH and candidates[0, i]:
            run.append(i)
            expected[i] = c[i] > threshold
        elif run:
            best = max(run, key=lambda j: c[j])
            expected[best] |= c[best] > low
            run = []
    rule = dc.Hierarchy(threshold=threshold, low_threshold=low)
    np.testing.assert_array_equal(choose(rule, logits, candidates), expected)


def test_hierarchy_by_hand():
    logits = with_confidences(0.65, 0.7, 0.9, 0.5, 0.66, 0.65, 0.8)
    candidates = np.array([[1, 1, 0, 1, 1, 1, 0]], bool)  # two runs: 0 to 1, and 3 to 5
    assert choose(dc.Hierarchy(), logits, candidates).tolist() == [0, 1, 0, 0, 1, 0, 0]


@settings(max_examples=40, deadline=None)
@given(seed=seeds, delta=st.floats(0.0, 1.0), sharpness=st.sampled_from([3.0, 6.0, 12.0]))
def test_frechet_profile(seed, delta, sharpness):
    logits, candidates = random_case(seed, sharpness)
    c, expected = confidences(logits), np.zeros(WIDTH, bool)
    order = ranked(c, candidates[0])
    for n in range(1, len(order) + 1):
        bound = max(0.0, sum(c[order[:n]]) - (n - 1))
        if bound - (1 - c[order[n - 1]]) > delta:
            expected[order[:n]] = True
    np.testing.assert_array_equal(choose(dc.FrechetProfile(delta=delta), logits, candidates), expected)


def test_frechet_takes_no_fewer_than_its_factor():
    """Equal confidences: (n + 1) c - n > delta, which is the factor's c > 1 - f / (n + 1), f = 1 - delta."""
    logits, everything = with_confidences(*[0.9] * 12), np.ones((1, 12), bool)
    taken = {
        n
        for n in range(1, 13)
        if choose(dc.FrechetProfile(delta=0.25), logits[:, :n], everything[:, :n]).all()
    }
    assert taken == {n for n in range(1, 13) if 1 - 0.75 / (n + 1) < 0.9} == set(range(1, 7))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, gamma=st.sampled_from([0.0, 0.001, 0.1, 1.0, 10.0]), by_margin=st.booleans())
def test_entropy_bound(seed, gamma, by_margin):
    logits, candidates = random_case(seed)
    p = np.exp(log_softmax(logits)[0])
    entropy = -(p * np.log(p)).sum(axis=-1)
    second, best = np.sort(p, axis=-1)[:, -2:].T
    order, expected = ranked(best - second if by_margin else best, candidates[0]), np.zeros(WIDTH, bool)
    for n in range(1, len(order) + 1):
        if n == 1 or entropy[order[:n]].sum() - entropy[order[:n]].max() <= gamma:
            expected[order[:n]] = True
    rule = dc.EntropyBound(gamma=gamma, order=dc.ByMargin() if by_margin else dc.ByConfidence())
    np.testing.assert_array_equal(choose(rule, logits, candidates), expected)


def passes(
    rule: Any, logits: list[np.ndarray], open_: np.ndarray, gen_length: int, start: int = 0
) -> tuple[list[np.ndarray], Any]:
    """What a rule takes on one pass after the other over the same block, and its last info."""
    memory, taken, info = rule.init(1, gen_length), [], None
    for each in logits:
        prediction = prediction_of(each, dc.Reads(entropy=True, top_k=getattr(rule, "top_k_cache", 2)))
        take, memory, info = ASK(rule, prediction, open_, np.array([start], np.int32), memory)
        taken.append(np.asarray(take)[0])
        open_ = open_ & ~np.asarray(take)
    return taken, info


@settings(max_examples=20, deadline=None)
@given(seed=seeds, drift=st.sampled_from([0.003, 0.03, 0.3]))
def test_klass(seed, drift):
    rng = np.random.default_rng(seed)
    first, open_ = random_case(seed)
    logits = [first]
    for _ in range(4):
        logits.append((logits[-1] + drift * rng.normal(size=first.shape)).astype(np.float32))
    rule = dc.StableAndConfident(conf_threshold=0.5, kl_threshold=1e-3, top_k_cache=32)
    taken, _ = passes(rule, logits, open_, gen_length=20, start=5)
    calm, still_open = np.zeros(WIDTH), open_[0].copy()
    for step, each in enumerate(logits):
        log_p = log_softmax(each)[0]
        if step:
            before = log_softmax(logits[step - 1])[0]
            moved = (np.exp(log_p) * (log_p - before)).sum(axis=-1)
            calm = np.where(moved < 1e-3, calm + 1, 0)
        expected = still_open & (calm >= 2) & (confidences(each) > 0.5)
        np.testing.assert_array_equal(taken[step], expected)
        still_open &= ~expected


def test_klass_wants_two_calm_passes():
    still, everything = with_confidences(0.7, 0.5), np.ones((1, 2), bool)
    taken, info = passes(dc.StableAndConfident(), [still] * 3, everything, gen_length=2)
    assert [each.tolist() for each in taken] == [[False, False], [False, False], [True, False]]
    np.testing.assert_array_equal(info.calm[0], [2, 2])


def test_credit_grows_while_the_same_token_stays_ahead():
    """C' = 0.8 C + c^0.2, and the odds of c are multiplied by (1 + C)^0.7; another token begins anew."""
    first, everything = with_confidences(0.7, 0.7), np.ones((1, 2), bool)
    other = first.copy()
    other[0, 1] = [*np.roll(first[0, 1, :31], 3).tolist(), -60.0]
    rule = dc.CreditThreshold(threshold=0.99)
    taken, info = passes(rule, [first, first, other], everything, gen_length=4)
    assert not np.any(taken)
    credit, lifted = np.zeros(2), None
    for kept in ([1, 1], [1, 1], [1, 0]):
        credit = 0.8 * credit * kept + 0.7**0.2
        odds = 0.7 / 0.3 * (1 + credit) ** 0.7
        lifted = odds / (1 + odds)
    np.testing.assert_allclose(info[0], lifted, rtol=1e-5)
    assert info[0, 0] > info[0, 1] > 0.7
    taken, _ = passes(dc.CreditThreshold(threshold=0.8), [first, first], everything, gen_length=4)
    assert [each.tolist() for each in taken] == [[False, False], [True, True]]


def test_a_falling_threshold():
    """A block of 4 with 96 positions behind it, then one at the answer's end, with none."""
    logits, everything = with_confidences(0.95, 0.91, 0.88, 0.6), np.ones((1, 4), bool)
    rule = dc.FallingThreshold(threshold=0.9, fall=0.4)
    taken, bound = passes(rule, [logits] * 2, everything, gen_length=128)
    assert taken[0].tolist() == [True, True, False, False]
    np.testing.assert_allclose(bound, [0.9 * (1 - 0.4 * 2 / 100)], rtol=1e-6)
    taken, bound = passes(rule, [logits] * 2, everything, gen_length=128, start=124)
    np.testing.assert_allclose(bound, [0.9 * (1 - 0.4 * 2 / 4)], rtol=1e-6)
    assert taken[1].tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("order", "expected"),
    [(dc.ByConfidence(), [[0, 1, 2], [3, 4]]), (dc.ByEntropy(), [[0, 1, 3], [2, 4]])],
)
def test_a_timetable(order, expected):
    """Five positions in two passes: three, then two."""
    logits = with_confidences(0.9, 0.8, 0.7, 0.6, 0.5)
    logits[0, 3, 4:31] = -60.0  # less confident than its neighbour, and with less entropy
    logits[0, 3, :31] -= np.log(np.exp(logits[0, 3, :31]).sum() / (1 - 1e-12))
    logits[0, 3, 3], logits[0, 3, :3] = np.log(0.6), np.log(0.4 / 3)
    rule = dc.Schedule(steps=4, order=order)  # of an answer of 10: a half of it, two passes
    taken, _ = passes(rule, [logits] * 2, np.ones((1, 5), bool), gen_length=10)
    assert [np.flatnonzero(each).tolist() for each in taken] == expected


def test_dreams_timetable():
    logits = with_confidences(*np.linspace(0.9, 0.3, 12))
    rule = dc.DreamSchedule(steps=4)
    taken, _ = passes(rule, [logits] * 4, np.ones((1, 12), bool), gen_length=12)
    times, left, expected = np.linspace(1, 1e-3, 5), 12, []
    for i in range(4):
        due = int(left * (1 - times[i + 1] / times[i])) if i < 3 else left
        expected.append(max(due, 1))
        left -= expected[-1]
    assert [int(each.sum()) for each in taken] == expected == [2, 3, 3, 4]
    taken, _ = passes(dc.DreamSchedule(steps=4, order=dc.ByMargin()), [logits], np.ones((1, 12), bool), 12)
    assert np.flatnonzero(taken[0]).tolist() == [0, 1]
