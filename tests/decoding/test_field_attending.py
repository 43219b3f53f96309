"""Rules that read attention, each against its twin in plain Python and a case made by hand."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from predictions import prediction_of
from test_field_selections import confidences, seeds, with_confidences

import depcap_jax as dc
from depcap_jax.decoding.field import plain

ASK = jax.jit(lambda rule, *arguments: rule(*arguments))
WIDTH, CANVAS, START = 12, 20, 5


class Case:
    """A block of up to 12 positions on a canvas of 20, the last of which may be padding."""

    before = 0
    """How far before a position the query stands that predicts it."""

    def __init__(self, seed: int, sharpness: float = 2.0):
        rng = np.random.default_rng(seed)
        self.logits = (rng.normal(size=(1, WIDTH, 32)) * 4).astype(np.float32)
        self.logits[..., -1] = -30.0
        self.size = int(rng.integers(1, WIDTH + 1))
        scores = rng.normal(size=(WIDTH, CANVAS)) * sharpness
        weights = np.exp(scores) * (np.arange(CANVAS) < START + self.size + rng.integers(0, 4))
        self.weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
        self.open = (rng.random(CANVAS) < 0.7) | (np.arange(CANVAS) >= START + self.size)
        self.open[:START] = False
        self.inside = np.arange(WIDTH) < self.size
        self.candidates = self.inside & self.open[START : START + WIDTH]
        self.c = confidences(self.logits)
        self.at_first = int(self.candidates.sum())

    def sight(self) -> plain.Sight:
        return plain.Sight(self.weights, self.open, START, self.size, max(self.at_first, 1))

    def expected(self, rule: Any) -> np.ndarray:
        """Flags of what the plain rule takes."""
        candidates = np.flatnonzero(self.candidates).tolist()
        taken = plain.select(rule, self.c, candidates, self.sight())
        assert taken is not None
        return np.isin(np.arange(WIDTH), taken)

    def prediction(self, inside: np.ndarray, reads: dc.Reads | None = None) -> dc.Prediction:
        weights = np.where(inside[:, None], self.weights, 0)
        start = np.array([START], np.int32)
        told: Any = (weights[None], inside[None], self.open[None], start, start - self.before)
        made: Any = prediction_of(self.logits, reads)
        return made._replace(attention=dc.Attention(*told), open=self.open[None, START : START + WIDTH])

    def ask(self, rule: Any, memory: Any = None) -> tuple[np.ndarray, Any, Any]:
        prediction = self.prediction(self.inside, rule.reads)
        taken, memory, info = ASK(rule, prediction, self.candidates[None], np.zeros(1, np.int32), memory)
        return np.asarray(taken)[0], memory, info


def by_hand(weights: np.ndarray, *values: float) -> Case:
    """A block of positions with these confidences, all open, that look at each other, and at 5 before."""
    case = Case(0)
    case.size = len(values)
    case.logits = np.zeros((1, WIDTH, 32), np.float32)
    case.logits[:, : case.size] = with_confidences(*values)
    case.weights = np.zeros((WIDTH, CANVAS), np.float32)
    case.weights[: len(weights), : weights.shape[1]] = weights
    case.open = np.arange(CANVAS) >= START
    case.inside = case.candidates = np.arange(WIDTH) < case.size
    return case


@settings(max_examples=60, deadline=None)
@given(seed=seeds, threshold=st.floats(0.3, 0.95))
def test_clad(seed, threshold):
    case = Case(seed)
    rule = dc.CLAD(threshold=threshold)
    taken, _, info = case.ask(rule)
    np.testing.assert_array_equal(taken, case.expected(rule))
    conflicts = np.asarray(info.conflicts)[0]
    np.testing.assert_array_equal(conflicts, conflicts.T)
    sure = case.candidates & (case.c >= threshold)
    assert conflicts.any() == (sure & ~taken).any(), "those that wait conflict with some that do not"


def test_clad_by_hand():
    """Three clusters: 0 and 1, 3, and 5. The last two look at each other, so the second of them waits."""
    weights = np.zeros((6, 11))
    weights[3, START + 5], weights[0, START + 3], weights[5, START + 1] = 0.4, 0.1, 0.1
    case = by_hand(weights, 0.8, 0.8, 0.5, 0.8, 0.5, 0.8)
    assert np.flatnonzero(case.ask(dc.CLAD())[0]).tolist() == [0, 1, 3]
    assert np.argwhere(case.ask(dc.CLAD())[2].conflicts[0]).tolist() == [[3, 5], [5, 3]]
    # Of two clusters the bound is 1.2 / 6, and the shorter one waits.
    for weight, expected in ((0.39, [0, 1, 3]), (0.41, [0, 1])):
        weights[0, START + 3] = weights[1, START + 3] = weight / 2
        weights[3, START : START + 2] = weight / 2
        case = by_hand(weights, 0.8, 0.8, 0.5, 0.8, 0.5, 0.5)
        assert np.flatnonzero(case.ask(dc.CLAD())[0]).tolist() == expected
    assert not case.ask(dc.CLAD(threshold=0.9))[0].any(), "the loop takes the most confident one"


@settings(max_examples=60, deadline=None)
@given(seed=seeds, tau=st.floats(0.0, 0.2), passes=st.integers(1, 3))
def test_dapd(seed, tau, passes):
    case, rule = Case(seed), dc.DAPD(tau_min=tau, tau_max=2 * tau, threshold=0.6)
    memory = rule.init(1, WIDTH)
    for _ in range(passes):
        taken, memory, _ = case.ask(rule, memory)
        np.testing.assert_array_equal(taken, case.expected(rule))
        some = np.flatnonzero(case.candidates)[:2]  # whatever was taken
        case.candidates = case.candidates & ~np.isin(np.arange(WIDTH), some)


def test_dapd_by_hand():
    """0 and 1 look at each other; 1 has more to do with others, so it comes first though 0 is surer."""
    weights = np.zeros((3, 8))
    weights[0, START + 1] = weights[1, START] = 0.3
    weights[1, START + 2] = 0.015
    case, rule = by_hand(weights, 0.5, 0.495, 0.1), dc.DAPD()
    assert case.ask(rule, rule.init(1, 3))[0][:3].tolist() == [False, True, True]
    rule = dc.DAPD(tau_min=0.005)
    assert case.ask(rule, rule.init(1, 3))[0][:3].tolist() == [False, True, False]


@settings(max_examples=60, deadline=None)
@given(
    seed=seeds,
    sink=st.floats(0.02, 0.2),
    edge=st.floats(0.02, 0.3),
    low=st.floats(0.3, 0.7),
    induce=st.floats(0.3, 0.7),
)
def test_dawn(seed, sink, edge, low, induce):
    case = Case(seed)
    rule = dc.DAWN(tau_sink=sink, tau_edge=edge, tau_induce=induce, tau_low=low, threshold=0.8)
    np.testing.assert_array_equal(case.ask(rule)[0], case.expected(rule))


def test_dawn_by_hand():
    """0 is sure; 1 looks at the prompt; 2 looks at 0, so it waits; of 3 and 4 one looks at the other."""
    weights = np.zeros((6, 11))
    weights[1, 2], weights[2, START], weights[4, START + 3] = 0.2, 0.2, 0.2
    case = by_hand(weights, 0.95, 0.72, 0.8, 0.8, 0.85, 0.7)
    assert np.flatnonzero(case.ask(dc.DAWN())[0]).tolist() == [0, 1, 4]
    # Where most look at one place it is a sink, and nobody's anchor.
    case.weights[:4, 2] = 0.2
    assert np.flatnonzero(case.ask(dc.DAWN())[0]).tolist() == [0, 4]
    # A committed position inside the block is an anchor only while the model is sure of it.
    for c, expected in ((0.95, [2, 4]), (0.6, [4])):
        case = by_hand(weights, c, 0.6, 0.72, 0.6, 0.85, 0.7)
        case.open[START] = False
        case.candidates = case.inside & (np.arange(WIDTH) > 0)
        assert np.flatnonzero(case.ask(dc.DAWN())[0]).tolist() == expected


def length_of(case: Case, remaining: int, **changes: Any) -> tuple[int, np.ndarray]:
    prediction = case.prediction(np.arange(WIDTH) < remaining)
    rule = dc.AttentionBlocks(l_max=WIDTH, **changes)
    length, _, info = ASK(rule, prediction, np.zeros(1, np.int32), np.array([remaining], np.int32), None)
    return int(length[0]), np.asarray(info.closure)[0]


@settings(max_examples=60, deadline=None)
@given(seed=seeds, remaining=st.integers(1, WIDTH), alpha=st.floats(0, 2))
def test_attention_blocks(seed, remaining, alpha):
    case = Case(seed)
    closure = plain.closures(dc.AttentionBlocks(alpha=alpha), case.sight()._replace(size=remaining))
    length, told = length_of(case, remaining, alpha=alpha)
    np.testing.assert_allclose(told[:remaining], closure, atol=1e-5)
    good = np.flatnonzero((told >= told.max() - np.float32(0.1)) & (np.arange(WIDTH) < remaining))
    assert length == good[-1] + 1


def test_attention_blocks_by_hand():
    """Three positions that look at each other and at the prompt, and others that look at the canvas' end."""
    weights = np.zeros((WIDTH, CANVAS))
    weights[:3, START : START + 3], weights[:3, 0] = 0.25, 0.25
    weights[3:, -1] = 1.0
    case = by_hand(weights, *[0.5] * WIDTH)
    length, closure = length_of(case, WIDTH)
    assert length == 3
    np.testing.assert_allclose(closure[:3], [0.375 / 0.875, 0.625 / 0.875, 1.0], rtol=1e-6)
    assert length_of(case, WIDTH, slack=0.3)[0] == 4  # (3 - 3/8) / (3 - 3/8 + 1) is 0.28 below
    assert length_of(case, 2)[0] == 2


@pytest.mark.parametrize("rule", [dc.CLAD, dc.DAWN, dc.DAPD, dc.AttentionBlocks])
def test_they_say_how_many_layers(rule):
    assert rule(layers=2).reads == dc.Reads(attention=2)
    with pytest.raises(ValueError, match="layers must be an integer of at least 1, got 0"):
        rule(layers=0)
