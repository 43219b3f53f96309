"""Which positions: the parallel rules against one-by-one ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import depcap_jax as dc
from depcap_jax.decoding.prediction import predict
from depcap_jax.decoding.select import conflict_score, greedy_independent_set

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


def prediction_of(logits: np.ndarray):
    zeros = jnp.zeros(len(logits), jnp.int32)
    vocabulary = logits.shape[-1]
    return predict(jnp.asarray(logits), vocabulary, vocabulary - 1, None, None, zeros, zeros[:, None])


def probabilities(logits: np.ndarray) -> np.ndarray:
    z = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return z / z.sum(axis=-1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), threshold=st.floats(0.05, 1.0), factor=st.floats(0.0, 3.0))
def test_thresholds(seed, threshold, factor):
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(1, 12, 32)) * 4).astype(np.float32)
    logits[..., -1] = -20.0
    candidates = rng.random((1, 12)) < 0.7
    prediction = prediction_of(logits)
    confidence = probabilities(logits).max(axis=-1)[0]

    chosen = dc.ConfidenceThreshold(threshold)(prediction, jnp.asarray(candidates))[0]
    np.testing.assert_array_equal(chosen, candidates[0] & (confidence >= threshold))

    expected = np.zeros(12, bool)
    ranked = sorted(np.flatnonzero(candidates[0]), key=lambda i: -confidence[i])
    for n, i in enumerate(ranked, start=1):
        if confidence[i] < 1 - factor / (n + 1):
            break
        expected[i] = True
    chosen = dc.FactorThreshold(factor)(prediction, jnp.asarray(candidates))[0]
    np.testing.assert_array_equal(chosen, expected)
    assert not dc.TopOne()(prediction, jnp.asarray(candidates)).any()


def test_a_threshold_of_one_wants_certainty():
    logits = np.zeros((1, 2, 8), np.float32)
    logits[0, 0, 1], logits[0, 1, 1] = 20.0, 60.0  # float32 rounds both probabilities to 1; float64 only one
    chosen = dc.ConfidenceThreshold(1.0)(prediction_of(logits), jnp.ones((1, 2), bool))
    assert chosen.tolist() == [[False, True]]


def test_conflict_score():
    logits = (np.random.default_rng(1).normal(size=(2, 6, 32)) * 3).astype(np.float32)
    prediction = prediction_of(logits)
    log_p, token = np.log(probabilities(logits)), np.asarray(prediction.token)
    for b in range(2):
        for i in range(6):
            for j in range(6):
                expected = log_p[b, i, token[b, j]] + log_p[b, j, token[b, i]]
                assert conflict_score(prediction)[b, i, j] == pytest.approx(expected, rel=1e-5)


def test_certain_positions_are_taken_even_if_they_conflict():
    logits = np.full((1, 3, 8), -12.0, np.float32)
    logits[0, :2, 1] = 0.0  # two positions sure of the same token: a conflict, D = 0
    logits[0, 2, 1], logits[0, 2, 2] = -0.5, 1.8  # a third, less sure, with D = -14.4 to both
    policy = dc.ConflictFree(tau_low=0.5, tau_high=0.95, gamma=-15.0)
    assert policy(prediction_of(logits), jnp.ones((1, 3), bool)).tolist() == [[True, True, False]]
    loose = dc.ConflictFree(tau_low=0.5, tau_high=0.95, gamma=0.0)
    assert loose(prediction_of(logits), jnp.ones((1, 3), bool)).tolist() == [[True, True, True]]
