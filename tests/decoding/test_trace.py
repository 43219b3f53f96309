"""A recorded decode: the same tokens, no cost when it is off, and a record that says what was decided."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from predictions import log_softmax
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.generate import _generate
from depcap_jax.decoding.reference import _compress, _kl
from depcap_jax.inspect.replay import replay

GEN_LENGTH = 24
SIGNALS = ("influence", "uncertainty", "score")
LENGTHS = np.array([5, 12, 16])
PROMPTS = np.random.default_rng(7).integers(0, 500, (3, 16))
# Thresholds that this untrained-looking model meets, so that there are candidates and conflicts.
DEPCAP: Any = {"l_min": 3, "l_max": 8, "tau_low": 0.1, "tau_high": 0.5, "gamma": -9.0, "stop_at_eos": False}
CONFIGS = {
    # Nobody waits, so rows at a start and rows inside a block share passes.
    "depcap": dc.depcap(cache=dc.DualCache(quorum=0.0), gen_length=GEN_LENGTH, **DEPCAP),
    "confidence": dc.recipe(
        "confidence", cache="none", gen_length=GEN_LENGTH, block_length=10, threshold=0.3
    ),
}


FORWARD = jax.jit(lambda model, tokens: model(tokens))


@pytest.fixture(scope="module")
def model() -> dc.Transformer:
    return small_model("llada")


@pytest.fixture(scope="module", params=list(CONFIGS))
def pair(request, model) -> tuple[dc.DecodeResult, dc.DecodeResult]:
    """A decode without and with its trace."""
    config = CONFIGS[request.param]
    plain = dc.generate(model, PROMPTS, LENGTHS, config=config)
    return plain, dc.generate(model, PROMPTS, LENGTHS, config=config, trace=True)


@pytest.fixture(scope="module")
def traced(model) -> dc.DecodeResult:
    return dc.generate(model, PROMPTS, LENGTHS, config=CONFIGS["depcap"], trace=True)


def test_the_trace_changes_nothing(pair):
    plain, traced = pair
    assert plain.trace is None
    assert traced.trace is not None
    for field in ("tokens", "lengths", "nfe", "block_sizes", "commit_step", "status"):
        np.testing.assert_array_equal(getattr(plain, field), getattr(traced, field), field)


@pytest.mark.parametrize("name", CONFIGS)
def test_off_it_is_not_in_the_program(model, name):
    """The program of `generate` is that of the bare loop, to the letter: `start`, turns, `finish`."""
    config = CONFIGS[name]

    def bare(model, prompt_ids, lengths, config, keys):
        state = dc.start(model, prompt_ids, lengths, config, keys)
        model = model.on_canvas(state.tokens.shape[1])

        def turn(state):
            return dc.decode_step(model, state, config)[0]

        state = lax.while_loop(lambda state: jnp.any(dc.is_live(model, state, config)), turn, state)
        return dc.finish(model, state, config)

    args = model, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), config, None
    bare.__name__ = "_generate"  # the module's name in the text
    off, expected = _generate.lower(*args, trace=False).as_text(), jax.jit(bare).lower(*args).as_text()
    # Functions of one name have numbers, which older JAX counts from elsewhere.
    assert re.sub(r"(@\w+?)_\d+\b", r"\1", off) == re.sub(r"(@\w+?)_\d+\b", r"\1", expected)
    buffer = f"tensor<3x{GEN_LENGTH}x{GEN_LENGTH}xf32>"
    assert buffer not in off
    assert buffer in _generate.lower(*args, trace=True).as_text()


def test_people_who_debug_nans_may_record(model, traced):
    """NaN marks nothing that a program returns: neither in a record nor in a state on its way."""
    config = CONFIGS["depcap"]
    with jax.debug_nans(True):
        again = dc.generate(model, PROMPTS, LENGTHS, config=config, trace=True)
        streamed = list(dc.stream(model, PROMPTS[1], 12, config=config))[-1].tokens
    np.testing.assert_array_equal(again.tokens, traced.tokens)
    np.testing.assert_array_equal(streamed, traced.tokens[1])


def test_every_pass_sees_the_open_positions_of_its_block(pair):
    for row in range(len(LENGTHS)):
        seen = replay(pair[1], row)
        assert seen.nfe > 1
        for step in range(1, seen.nfe + 1):
            block = [block for block in seen.blocks if block.first_pass <= step][-1]
            position = np.arange(GEN_LENGTH)
            still_open = (seen.commit_step == 0) | (seen.commit_step >= step)
            expected = (position >= block.start) & (position < block.end) & still_open
            np.testing.assert_array_equal(np.isfinite(seen.confidence[step - 1]), expected)
            np.testing.assert_array_equal(seen.guess[step - 1] >= 0, expected)


def test_what_was_committed_is_what_was_seen(pair):
    for row in range(len(LENGTHS)):
        seen, tokens = replay(pair[1], row), np.asarray(pair[1].tokens[row])
        np.testing.assert_array_equal(seen.tokens[: seen.visible], tokens[: seen.visible])
        done = seen.commit_step > 0
        # Without sampling the committed token is the likeliest one, at its confidence.
        np.testing.assert_array_equal(seen.alternatives[done, 0], seen.tokens[done])
        np.testing.assert_allclose(
            seen.alternative_confidence[done, 0], seen.commit_confidence[done], rtol=1e-6
        )
        assert (np.diff(seen.alternative_confidence[done], axis=1) <= 0).all()
        assert (seen.alternatives[~done] == -1).all()
        assert seen.commits.sum() == done.sum()


def test_blocks_lie_end_to_end_and_hold_their_commits(pair):
    seen = replay(pair[1], 1)
    assert seen.blocks[0].start == 0
    assert [b.start for b in seen.blocks[1:]] == [b.end for b in seen.blocks[:-1]]
    for index, block in enumerate(seen.blocks):
        steps = seen.commit_step[block.start : block.end]
        assert seen.block_at(block.first_pass) is seen.blocks[index]
        assert steps[steps > 0].min() == block.first_pass


def _distributions(model: dc.Transformer, result: dc.DecodeResult, row: int, step: int) -> np.ndarray:
    """Log-probabilities [G, V] in float64 of a row's answer before its pass `step`, by a plain full pass."""
    seen, prompt = replay(result, row), PROMPTS[row, : LENGTHS[row]]
    known = (seen.commit_step > 0) & (seen.commit_step < step)
    tokens = np.concatenate([prompt, np.where(known, seen.tokens, model.config.mask_token_id)])[None]
    return log_softmax(np.asarray(FORWARD(model, tokens)[0]))[LENGTHS[row] :]


def test_signals_are_the_papers(model, traced):
    """I and H from plain full passes in float64; the boundary is the first negative score, clipped."""
    rule: Any = CONFIGS["depcap"].partition
    seen = replay(traced, 1)
    assert len(seen.blocks) > 2
    first = seen.partition_signals(seen.blocks[0])
    assert not first["influence"].any()
    assert not first["score"].any()
    assert first["uncertainty"].all()
    for last, block in zip(seen.blocks, seen.blocks[1:], strict=False):
        width = min(rule.l_max, GEN_LENGTH - block.start)
        told = seen.partition_signals(block)
        assert {name: len(numbers) for name, numbers in told.items()} == dict.fromkeys(SIGNALS, width)
        before, now = (_distributions(model, traced, 1, b.first_pass) for b in (last, block))
        ahead = range(block.start, block.start + width)
        influence = [
            _kl(_compress(now[k], rule.top_k_cache), _compress(before[k], rule.top_k_cache)) for k in ahead
        ]
        np.testing.assert_allclose(told["influence"], influence, rtol=2e-3, atol=2e-5)
        entropy = [-(np.exp(now[k]) * now[k]).sum() for k in ahead]
        np.testing.assert_allclose(told["uncertainty"], entropy, rtol=2e-3, atol=2e-5)
        negative = np.flatnonzero(told["score"] < 0)
        length = negative[0] if len(negative) else width
        assert block.size == min(max(length, rule.l_min), rule.l_max, GEN_LENGTH - block.start)


def test_conflicts_are_the_papers(model, traced):
    """At each block's start, where the pass is a full one: D_ij > gamma between members of the pool."""
    rule: Any = CONFIGS["depcap"].select
    seen, found = replay(traced, 1), 0
    for block in seen.blocks:
        log_p = _distributions(model, traced, 1, block.first_pass)
        guess, c = seen.guess[block.first_pass - 1], seen.confidence[block.first_pass - 1]
        pool = [k for k in range(block.start, block.end) if c[k] >= rule.tau_low]
        score = {(i, j): log_p[i, guess[j]] + log_p[j, guess[i]] for i in pool for j in pool if i < j}
        drawn = {(int(i), int(j)) for i, j in seen.pairs(block.first_pass)["conflicts"]}
        clear = {pair for pair, d in score.items() if abs(d - float(rule.gamma)) > 1e-3}
        assert drawn & clear == {pair for pair in clear if score[pair] > float(rule.gamma)}
        assert drawn <= set(score)
        found += len(drawn)
    assert found, "the run is to have conflicts"


def test_conflicting_positions_are_not_committed_together(traced):
    """Unless both are certain, or one is the pass's most confident position."""
    rule: Any = CONFIGS["depcap"].select
    for row in range(len(LENGTHS)):
        seen = replay(traced, row)
        for step in range(1, seen.nfe + 1):
            c = seen.confidence[step - 1]
            for i, j in seen.pairs(step)["conflicts"]:
                together = seen.commit_step[i] == step == seen.commit_step[j]
                best = np.nanargmax(c) in (i, j)
                assert not together or min(c[i], c[j]) >= rule.tau_high or best


def test_what_a_policy_does_not_tell_is_not_there(model):
    seen = replay(dc.generate(model, PROMPTS, LENGTHS, config=CONFIGS["confidence"], trace=True))
    assert seen.pairs(1) == seen.selection_signals(1) == seen.partition_signals(seen.blocks[0]) == {}


def test_the_cache_tells_its_passes(traced):
    """A full pass at each block's start, and spans of the compiled width between them."""
    seen = replay(traced, 1)
    first_pass = {block.first_pass for block in seen.blocks}
    for step in range(1, seen.nfe + 1):
        assert seen.facts(step)["refresh"] == (step in first_pass)
        if not seen.facts(step)["refresh"]:
            assert seen.facts(step)["width"] in (8, PROMPTS.shape[1] + GEN_LENGTH)
    assert len(first_pass) < seen.nfe


def test_a_row_is_recorded_the_same_alone(model, traced):
    alone = dc.generate(model, PROMPTS[1:2], LENGTHS[1:2], config=CONFIGS["depcap"], trace=True)
    one, among = replay(alone), replay(traced, 1)
    np.testing.assert_array_equal(one.guess, among.guess)
    np.testing.assert_allclose(one.confidence, among.confidence, rtol=1e-4)
    np.testing.assert_array_equal(one.alternatives, among.alternatives)
    np.testing.assert_allclose(one.alternative_confidence, among.alternative_confidence, rtol=1e-3, atol=1e-7)
    np.testing.assert_array_equal(one.cache["refresh"], among.cache["refresh"])
    np.testing.assert_array_equal(one.select["conflicts"], among.select["conflicts"])
    for name in SIGNALS:
        for mine, theirs in zip(one.blocks, among.blocks, strict=True):
            pair = one.partition_signals(mine)[name], among.partition_signals(theirs)[name]
            np.testing.assert_allclose(*pair, rtol=5e-3, atol=1e-4, err_msg=name)
        unasked = [step for step in range(1, one.nfe + 1) if step not in {b.first_pass for b in one.blocks}]
        assert unasked
        assert not among.partition[name][[step - 1 for step in unasked]].any()
    assert [(b.start, b.size, b.first_pass) for b in one.blocks] == [
        (b.start, b.size, b.first_pass) for b in among.blocks
    ]


def test_reading_what_was_not_recorded(model, traced):
    with pytest.raises(ValueError, match=r"trace=True"):
        replay(dataclasses.replace(traced, trace=None))
    wrong: list[Any] = [3, -1, True, "0"]
    for row in wrong:
        with pytest.raises(ValueError, match=r"row must be an integer in \[0, 2\]"):
            replay(traced, row)
