"""Our own selection, against its twin in plain Python and cases made by hand."""

from __future__ import annotations

import types
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from predictions import log_softmax
from small_models import small_model
from test_field_attending import CANVAS, START, WIDTH, Case, by_hand
from test_field_selections import seeds

import depcap_jax as dc
from depcap_jax.decoding.field.spread import Said


def as_said(token: np.ndarray, confidence: np.ndarray) -> Said:
    """What the positions said before."""
    return Said(jnp.asarray(token), jnp.asarray(confidence))


def twin(rule: dc.Spread, case: Case, before: Said) -> np.ndarray:
    """Flags of what is to be taken, from the rule's description."""
    log_p = log_softmax(case.logits[0])
    token = log_p[:, :-1].argmax(axis=-1)
    log_c = log_p[np.arange(WIDTH), token]
    c, candidates = np.exp(log_c), np.flatnonzero(case.candidates).tolist()

    def look(i: int, j: int) -> float:
        return 0.0 if i == j else case.weights[i, START + j - case.before]

    def conflict(i: int, j: int) -> bool:
        near = abs(i - j) < float(rule.reach) * min(-log_c[i], -log_c[j])
        wanted = log_p[i, token[j]] + log_p[j, token[i]] > float(rule.gamma)
        return (near and wanted) or max(look(i, j), look(j, i)) > float(rule.look)

    ranked, sure, doubt = sorted(candidates, key=lambda i: (-c[i], i)), [], 0.0
    for i in ranked:
        doubt += 1 - c[i]
        if doubt > float(rule.doubt):
            break
        sure.append(i)
    ready = []
    for i in ranked:
        moved = abs(c[i] - float(before.confidence[0, i]))
        same = token[i] == int(before.token[0, i])
        waits = any(look(i, j) > float(rule.look_back) for j in candidates if j < i)
        if same and moved < float(rule.drift) and c[i] >= float(rule.least) and not waits:
            ready.append(i)
    ready = [i for i in ready if not any(conflict(i, j) for j in sure)]
    taken = list(sure)
    for i in ranked:
        unsure = [j for j in taken if j not in sure]
        if i not in sure and i in {*ready, *candidates[:1]} and not any(conflict(i, j) for j in unsure):
            taken.append(i)
    return np.isin(np.arange(WIDTH), taken)


@settings(max_examples=80, deadline=None)
@given(
    seed=seeds,
    doubt=st.floats(0.0, 1.5),
    least=st.floats(0.0, 0.6),
    drift=st.floats(0.01, 0.9),
    look=st.floats(0.02, 0.3),
    back=st.floats(0.02, 0.3),
    reach=st.floats(0.0, 20.0),
    gamma=st.floats(-20.0, 0.0),
    shift=st.booleans(),
)
def test_spread(seed, doubt, least, drift, look, back, reach, gamma, shift):
    case = Case(seed, sharpness=1.0)
    case.before = int(shift)
    given = {"doubt": doubt, "least": least, "drift": drift, "look": look}
    rule = dc.Spread(**given, look_back=back, reach=reach, gamma=gamma)
    rng = np.random.default_rng(seed)
    log_p = log_softmax(case.logits[0])
    token = np.where(rng.random(WIDTH) < 0.7, log_p[:, :-1].argmax(axis=-1), -1).astype(np.int32)
    said = as_said(token[None], rng.random((1, WIDTH)).astype(np.float32))
    taken, now, standing = case.ask(rule, said)
    np.testing.assert_array_equal(taken, twin(rule, case, said))
    if case.candidates.any():
        assert taken.any(), "what is sure, or the first, or what is surer than the first"
    np.testing.assert_array_equal(np.asarray(now.token)[0] == token, ~case.candidates | (token >= 0))
    conflicts = np.asarray(standing.conflicts)[0]
    np.testing.assert_array_equal(conflicts, conflicts.T)


def test_spread_by_hand():
    """0 is first, 1 too close to it, 3 looks back at 1, 5 stands apart, 6 is sure."""
    weights = np.zeros((7, CANVAS))
    weights[3, START + 1] = 0.2
    case, rule = by_hand(weights, 0.5, 0.4, 0.3, 0.4, 0.25, 0.4, 0.99), dc.Spread(reach=4.0)
    token = np.zeros((1, WIDTH), np.int32)
    token[:, :7] = case.ask(rule, rule.init(1, WIDTH))[1].token[:, :7]
    said = as_said(token, np.asarray([[0.5, 0.4, 0.3, 0.4, 0.25, 0.4, 0.99, *[0] * (WIDTH - 7)]], np.float32))

    def taken(rule: dc.Spread, said: Said = said) -> list[int]:
        return np.flatnonzero(case.ask(rule, said)[0]).tolist()

    assert taken(rule, rule.init(1, WIDTH)) == [0, 6], "nothing is settled on the first pass"
    assert taken(rule) == [0, 5, 6]
    assert taken(dc.Spread(reach=4.0, gamma=0.0)) == [0, 1, 2, 4, 5, 6], (
        "nobody wants another's token: all go"
    )
    assert taken(dc.Spread(reach=4.0, gamma=0.0, look_back=0.3)) == [0, 1, 2, 4, 5, 6], "3 and 1 look"
    assert taken(dc.Spread(reach=4.0, gamma=0.0, look_back=0.3, look=0.3)) == [0, 1, 2, 3, 4, 5, 6]
    assert taken(dc.Spread(reach=4.0, least=0.45)) == [0, 6]
    moved = as_said(token, np.asarray(said.confidence) - np.float32(0.1))
    assert taken(rule, moved) == [0, 6], "what has moved waits"
    assert taken(dc.Spread(reach=4.0, drift=0.2), moved) == [0, 5, 6]


@pytest.mark.parametrize("predicts_next", [False, True])
@pytest.mark.parametrize("start", [0, 5])
def test_who_looks_at_whom_is_told_between_queries(predicts_next, start):
    """Where a model predicts the next position, the query that predicts j stands before j."""
    model: Any = types.SimpleNamespace(config=types.SimpleNamespace(predicts_next=predicts_next))
    weights = np.random.default_rng(0).random((1, 6, 8), np.float32)
    inside, open_ = np.arange(6)[None] < 5, np.ones((1, 8), bool)
    told = dc.Attention.of(model, *map(jnp.asarray, (weights, open_, np.array([start]), inside)))
    for i in range(6):
        for j in range(6):
            query = min(max(start + j - predicts_next, 0), 7)
            expected = weights[0, i, query] if inside[0, i] and inside[0, j] else 0
            assert told.between[0, i, j] == expected


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual-margin"])
def test_a_row_decodes_as_it_does_alone(family, cache):
    """Over a window that slides, with positions that go before they are sure."""
    model, lengths = small_model(family), np.array([5, 12])
    prompts = np.random.default_rng(3).integers(0, 500, (2, 16))
    shape = {"open_length": 8, "gen_length": 24, "layers": 2}
    config = dc.recipe(
        "spread",
        least=0.0,
        drift=0.5,
        look=0.2,
        look_back=0.5,
        reach=0.5,
        stop_at_eos=False,
        cache=cache,
        **shape,
    )
    together = dc.generate(model, prompts, lengths, config=config)
    dc.raise_for_status(together)
    assert together.nfe.max() < 16, "several positions go on a pass"
    for row in range(2):
        alone = dc.generate(model, prompts[row : row + 1], lengths[row : row + 1], config=config)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_array_equal(alone.commit_step[0], together.commit_step[row])
