"""Which positions: the parallel rules against one-by-one ones."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import given, settings, strategies as st
from predictions import log_softmax, prediction_of

import depcap_jax as dc
from depcap_jax.decoding.select import greedy_independent_set

greedy = jax.jit(greedy_independent_set)


def one_by_one(conflict: np.ndarray, confidence: np.ndarray, pool: np.ndarray) -> np.ndarray:
    taken = np.zeros_like(pool)
    for i in sorted(np.flatnonzero(pool), key=lambda i: (-confidence[i], i)):
        if not (conflict[i] & taken).any():
            taken[i] = True
    return taken


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    density=st.sampled_from([0.0, 0.05, 0.3, 0.9, 1.0]),
    levels=st.sampled_from([1, 3, 1000]),
)
def test_parallel_rounds_find_the_greedy_set(seed, density, levels):
    rng = np.random.default_rng(seed)
    size = 24
    upper = np.triu(rng.random((2, size, size)) < density, 1)
    conflict = upper | upper.swapaxes(1, 2)
    confidence = -(rng.integers(0, levels, (2, size)) / 1000).astype(np.float32)  # few levels: many ties
    pool = rng.random((2, size)) < 0.8
    ours = np.asarray(greedy(conflict, confidence, pool))
    for row in range(2):
        np.testing.assert_array_equal(ours[row], one_by_one(conflict[row], confidence[row], pool[row]))


PAIRS = dc.Reads(pairs=True)
ASK = jax.jit(lambda rule, *arguments: rule(*arguments))


def choose(rule, logits, candidates, reads=PAIRS) -> np.ndarray:
    start = np.zeros(len(logits), np.int32)
    return np.asarray(ASK(rule, prediction_of(logits, reads), candidates, start, None)[0])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), threshold=st.floats(0.05, 1.0), factor=st.floats(0.0, 3.0))
def test_thresholds(seed, threshold, factor):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(1, 12, 32)) * 4).astype(np.float32)
    logits[..., -1] = -20.0
    candidates = rng.random((1, 12)) < 0.7
    confidence = np.exp(log_softmax(logits)).max(axis=-1)[0]

    (chosen,) = choose(dc.ConfidenceThreshold(threshold=threshold), logits, candidates)
    np.testing.assert_array_equal(chosen, candidates[0] & (confidence >= threshold))

    expected = np.zeros(12, bool)
    ranked = sorted(np.flatnonzero(candidates[0]), key=lambda i: -confidence[i])
    for n, i in enumerate(ranked, start=1):
        if confidence[i] < 1 - factor / (n + 1):
            break
        expected[i] = True
    (chosen,) = choose(dc.FactorThreshold(factor=factor), logits, candidates)
    np.testing.assert_array_equal(chosen, expected)
    assert not choose(dc.TopOne(), logits, candidates).any()


def test_a_threshold_of_one_wants_certainty():
    logits = np.zeros((1, 2, 8), np.float32)
    logits[0, 0, 1], logits[0, 1, 1] = 20.0, 60.0  # float32 rounds both probabilities to 1; float64 only one
    chosen = choose(dc.ConfidenceThreshold(threshold=1.0), logits, np.ones((1, 2), bool))
    assert chosen.tolist() == [[False, True]]


def test_conflicts_are_pairs_of_the_pool_whose_score_exceeds_gamma():
    """D_ij = log p_i(y_j) + log p_j(y_i) > gamma, and both have a confidence of at least tau_low."""
    logits = (np.random.default_rng(1).normal(size=(2, 6, 32)) * 3).astype(np.float32)
    prediction = prediction_of(logits, PAIRS)
    log_p, token = log_softmax(logits), np.asarray(prediction.token)
    rule = dc.ConflictFree(tau_low=0.3, tau_high=0.9, gamma=-7.0)
    everything, start = np.ones((2, 6), bool), np.zeros(2, np.int32)
    conflicts = np.asarray(ASK(rule, prediction, everything, start, None)[2].conflicts)
    pool = np.exp(np.asarray(prediction.log_confidence)) >= 0.3
    for b, i, j in np.ndindex(2, 6, 6):
        score = log_p[b, i, token[b, j]] + log_p[b, j, token[b, i]]
        expected = i != j and score > -7.0 and pool[b, i] and pool[b, j]
        assert conflicts[b, i, j] == expected
    assert 0 < conflicts.sum() < pool.sum() ** 2, "the case is to have both"


def test_certain_positions_are_taken_even_if_they_conflict():
    logits = np.full((1, 3, 8), -12.0, np.float32)
    logits[0, :2, 1] = 0.0  # two positions sure of the same token: a conflict, D = 0
    logits[0, 2, 1], logits[0, 2, 2] = -0.5, 1.8  # a third, less sure, with D = -14.4 to both
    policy = dc.ConflictFree(tau_low=0.5, tau_high=0.95, gamma=-15.0)
    assert choose(policy, logits, np.ones((1, 3), bool)).tolist() == [[True, True, False]]
    loose = dc.ConflictFree(tau_low=0.5, tau_high=0.95, gamma=0.0)
    assert choose(loose, logits, np.ones((1, 3), bool)).tolist() == [[True, True, True]]
