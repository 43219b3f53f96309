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


def as_said(token: np.ndarray, confidence: np.ndarray, calm: Any = 0) -> Said:
    """What the positions said before, and for how many passes they had."""
    passes = np.broadcast_to(np.asarray(calm, np.int32), token.shape)
    return Said(jnp.asarray(token), jnp.asarray(confidence), jnp.asarray(passes))


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

    def calm(i: int) -> int:
        same = token[i] == int(before.token[0, i])
        still = abs(c[i] - float(before.confidence[0, i])) < float(rule.drift)
        return int(before.calm[0, i]) + 1 if same and still else 0

    def choice(i: int) -> bool:
        rival = max(np.exp(log_p[i, v]) for v in range(log_p.shape[1]) if v != token[i])
        return rival / (1 - c[i]) <= float(rule.rival) or calm(i) >= rule.calm

    ranked, sure, doubt = sorted(candidates, key=lambda i: (-c[i], i)), [], 0.0
    for i in ranked:
        doubt += 1 - c[i]
        if doubt > float(rule.doubt):
            break
        sure.append(i)
    unsure = [i for i in candidates if i not in sure]
    begins = [i for i in unsure if i - 1 not in unsure and i < unsure[0] + rule.nearest]
    lead = min(begins, key=lambda i: (-c[i], i), default=None)
    ready = []
    for i in unsure:
        known = [j for j in (i - 2, i - 1, i + 1, i + 2) if j < case.size and j not in candidates]
        waits = any(look(i, j) > float(rule.look_back) for j in candidates if j < i)
        if i == lead:
            goes = (choice(i) and calm(i) > 0) or not any(j < i for j in sure)
        else:
            entropy = -np.sum(np.exp(log_p[i]) * log_p[i])
            goes = choice(i) and c[i] >= float(rule.least) and entropy <= float(rule.entropy)
            goes = goes and not waits and len(known) >= rule.known
            goes = goes and not any(conflict(i, j) for j in sure)
        told_behind = i + 1 in sure and i + 2 not in sure
        if goes and not told_behind:
            ready.append(i)
    taken: list[int] = []
    for i in ranked:
        if i in ready and not any(conflict(i, j) for j in taken):
            taken.append(i)
    return np.isin(np.arange(WIDTH), [*sure, *taken])


@settings(max_examples=80, deadline=None)
@given(
    seed=seeds,
    doubt=st.floats(0.0, 1.5),
    numbers=st.tuples(st.floats(0.0, 0.6), st.floats(0.01, 0.9), st.floats(0.2, 1.0), st.floats(0.3, 3.0)),
    looks=st.tuples(st.floats(0.02, 0.3), st.floats(0.02, 0.3)),
    reach=st.floats(0.0, 20.0),
    gamma=st.floats(-20.0, 0.0),
    counts=st.sampled_from([(1, 0, 3), (3, 2, 1), (3, 1, 2), (12, 3, 2), (8, 0, 1)]),
    shift=st.booleans(),
)
def test_spread(seed, doubt, numbers, looks, reach, gamma, counts, shift):
    case = Case(seed, sharpness=1.0)
    case.before = int(shift)
    names = ("least", "drift", "rival", "entropy", "look", "look_back", "nearest", "known", "calm")
    given = dict(zip(names, (*numbers, *looks, *counts), strict=True))
    rule = dc.Spread(doubt=doubt, **given, reach=reach, gamma=gamma)
    rng = np.random.default_rng(seed)
    log_p = log_softmax(case.logits[0])
    token = np.where(rng.random(WIDTH) < 0.7, log_p[:, :-1].argmax(axis=-1), -1).astype(np.int32)
    said = as_said(token[None], rng.random((1, WIDTH)).astype(np.float32), rng.integers(0, 2, (1, WIDTH)))
    taken, now, standing = case.ask(rule, said)
    np.testing.assert_array_equal(taken, twin(rule, case, said))
    if case.candidates.any():
        assert taken.any(), "what is sure, or the lead, or what is surer than the lead"
    np.testing.assert_array_equal(np.asarray(now.token)[0] == token, ~case.candidates | (token >= 0))
    conflicts = np.asarray(standing.conflicts)[0]
    np.testing.assert_array_equal(conflicts, conflicts.T)


def asked(
    values: tuple[float, ...], weights: np.ndarray, calm: int | None, rule: dc.Spread, **given: Any
) -> list[int]:
    """What a rule takes of a block by hand that said the same `calm` + 1 times; None: no pass yet."""
    case = by_hand(weights, *values)
    for position, rival in given.get("rivals", {}).items():
        rest = (1 - values[position] - rival) / 29
        case.logits[0, position, :31] = np.log(rest)
        case.logits[0, position, [position % 31, 30]] = np.log([values[position], rival])
    for position in given.get("known", ()):
        case.candidates = case.candidates & (np.arange(WIDTH) != position)
    nothing = rule.init(1, WIDTH)
    if calm is None:
        return np.flatnonzero(case.ask(rule, nothing)[0]).tolist()
    token = np.asarray(case.ask(rule, nothing)[1].token)
    confidence = np.zeros((1, WIDTH), np.float32)
    confidence[0, : len(values)] = np.asarray(values) - given.get("moved", 0.0)
    return np.flatnonzero(case.ask(rule, as_said(token, confidence, calm))[0]).tolist()


def test_what_goes_beside_the_lead_by_hand():
    """0 leads, 1 is too close to it, 3 looks back at 1, 5 stands apart, 7 is sure."""
    values, weights = (0.5, 0.4, 0.3, 0.4, 0.25, 0.4, 0.3, 0.99), np.zeros((8, CANVAS))
    weights[3, START + 1] = 0.2
    rule = dc.Spread(reach=4.0, known=0, entropy=9.0)
    assert asked(values, weights, None, rule) == [0, 5, 7], "many share their doubts: choices"
    alone = dc.Spread(reach=4.0, known=0, entropy=9.0, gamma=0.0)
    assert asked(values, weights, None, alone) == [0, 1, 2, 4, 5, 7], (
        "nobody wants another's token: all go, but for 3, which waits, and 6, with what is sure behind it"
    )
    apart = dc.Spread(reach=4.0, known=0, entropy=9.0, gamma=0.0, look_back=0.3, look=0.3)
    assert asked(values, weights, None, apart) == [0, 1, 2, 3, 4, 5, 7]
    assert asked(values, weights, None, dc.Spread(reach=4.0, known=0, entropy=9.0, least=0.45)) == [0, 7]
    assert asked(values, weights, None, dc.Spread(reach=4.0, known=0)) == [0, 7], "5 has 2.7 nats"
    assert asked(values, weights, None, dc.Spread(reach=4.0, known=0, entropy=2.8)) == [0, 5, 7]
    assert asked(values, weights, None, dc.Spread(reach=4.0, entropy=9.0)) == [0, 7], "nothing known around 5"
    assert asked(values, weights, None, dc.Spread(reach=4.0, entropy=9.0), known=(4, 3)) == [0, 5, 7]


def test_one_rival_makes_it_no_choice_by_hand():
    """5 stands apart. Where one token has most of what it doubts, it is in the making, and waits."""
    values, weights = (0.5, 0.3, 0.3, 0.3, 0.3, 0.4, 0.3, 0.3), np.zeros((8, CANVAS))
    rule = dc.Spread(reach=4.0, known=0, entropy=9.0, least=0.35)
    assert asked(values, weights, None, rule) == [0, 5]
    assert asked(values, weights, None, rule, rivals={5: 0.3}) == [0, 5], "half of the doubt, 0.6"
    assert asked(values, weights, None, rule, rivals={5: 0.39}) == [0], "more than 0.6 of it"
    assert asked(values, weights, 1, rule, rivals={5: 0.39}) == [0], "two calm passes"
    assert asked(values, weights, 2, rule, rivals={5: 0.39}) == [0, 5], "three"
    assert asked(values, weights, 2, rule, rivals={5: 0.39}, moved=0.1) == [0], "what has moved is not calm"
    still = dc.Spread(reach=4.0, known=0, entropy=9.0, least=0.35, drift=0.2)
    assert asked(values, weights, 2, still, rivals={5: 0.39}, moved=0.1) == [0, 5]


def test_what_leads_by_hand():
    """The surest beginning of a gap, if nothing sure that it has not seen goes before it."""
    weights, rule = np.zeros((8, CANVAS)), dc.Spread(least=1.0)
    values = (0.3, 0.9, 0.3, 0.3, 0.5, 0.3, 0.3, 0.3)
    assert asked(values, weights, None, rule) == [0], "1 is surer, but begins no gap"
    assert asked(values, weights, None, rule, known=(3,)) == [4], "behind 3, which is known"
    assert asked(values, weights, None, dc.Spread(least=1.0, nearest=4), known=(3,)) == [0]
    behind, tail = (0.3, 0.99, *[0.3] * 6), (0.3, *[0.998] * 7)
    assert asked(behind, weights, 9, rule) == [1], "0 leads, and 1 may tell it more"
    assert asked(tail, weights, 9, rule) == [0, 1, 2, 3, 4, 5, 6, 7], "a tail tells it nothing"
    told = (0.3, 0.9, 0.3, 0.99, 0.3, 0.7, 0.3, 0.3)
    first = dc.Spread(least=1.0, nearest=3)
    assert asked(told, weights, None, first) == [0, 3], "what is sure behind it tells it nothing"
    sure = (0.99, 0.9, 0.3, 0.5, 0.3, 0.3, 0.3, 0.3)
    assert asked(sure, weights, None, rule, known=(1, 2)) == [0], "3 leads, and waits: 0 is news"
    assert asked(sure, weights, 0, rule, known=(1, 2)) == [0, 3], "it has heard that before"
    assert asked(sure, weights, 1, rule, known=(1, 2), rivals={3: 0.4}) == [0], "in the making"
    assert asked(sure, weights, 2, rule, known=(1, 2), rivals={3: 0.4}) == [0, 3], "three calm passes"


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
        known=0,
        entropy=9.0,
        rival=1.0,
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
