"""Selections that take back: Saber against NumPy, and a loop that ends whatever is revoked."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from predictions import log_softmax
from small_models import small_model

import depcap_jax as dc
from depcap_jax.inspect import viewer
from depcap_jax.inspect.replay import replay

GEN_LENGTH, BLOCK = 20, 12
LENGTHS = np.array([5, 12, 9])
PROMPTS = np.random.default_rng(7).integers(0, 500, (3, 12)).astype(np.int32)
FORWARD = jax.jit(lambda model, tokens: model(tokens))


def config_of(select: dc.Select, **settings) -> dc.DecodeConfig:
    fixed = {"gen_length": GEN_LENGTH, "stop_at_eos": False, **settings}
    return dc.DecodeConfig(partition=dc.FixedBlocks(block_length=BLOCK), select=select, **fixed)


def saber_by_hand(model: dc.Transformer, prompt: np.ndarray, least: int) -> tuple[list, list, list]:
    """Tokens, the passes of their last commits, and [pass, position] of all that was revoked."""
    mask, start = model.config.mask_token_id, len(prompt)
    answer, steps = np.full(GEN_LENGTH, mask), np.zeros(GEN_LENGTH, int)
    last, committed, revoked, nfe = {}, {}, [], 0
    while not steps.all():
        nfe += 1
        log_p = log_softmax(np.asarray(FORWARD(model, np.concatenate([prompt, answer])[None])[0]))[start:]
        log_p[:, mask] = -np.inf
        c, token = np.exp(log_p.max(axis=-1)), log_p.argmax(axis=-1)
        first = int(np.argmin(steps > 0)) // BLOCK * BLOCK
        block = range(first, min(first + BLOCK, GEN_LENGTH))
        bound = np.mean(list(committed.values())) if committed else 1.0
        ranked = sorted((i for i in block if not steps[i]), key=lambda i: (-c[i], i))
        take = [i for i in ranked if c[i] > bound]
        take = take if len(take) >= least else ranked[:least]
        for i in take:
            answer[i], steps[i], committed[i] = token[i], nfe, c[i]
        count = min(max(least // 2, int(np.ceil(len(take) / 8))), len(take) - 1)
        fallen = sorted((i for i in block if steps[i] and i in last), key=lambda i: (c[i] - last[i], i))
        for i in fallen[:count]:
            answer[i], steps[i] = mask, 0
            revoked.append([nfe, i])
        last |= {i: c[i] for i in block}
    return answer.tolist(), steps.tolist(), sorted(revoked)


@pytest.fixture(scope="module")
def result() -> dc.DecodeResult:
    return dc.generate(two_layers(), PROMPTS, LENGTHS, config=config_of(dc.Saber()), trace=True)


def two_layers() -> dc.Transformer:
    return small_model("llada", num_layers=2)


def test_saber_as_by_hand_and_recorded(result):
    for row, length in enumerate(LENGTHS):
        tokens, steps, revoked = saber_by_hand(two_layers(), PROMPTS[row, :length], 2)
        assert result.tokens[row].tolist() == tokens
        assert result.commit_step[row].tolist() == steps
        seen = replay(result, row)
        told = [[p + 1, seen.block_at(p + 1).start + i] for p, i in np.argwhere(seen.select["revoked"])]
        assert told == revoked
        assert len(revoked) > 3
        # What a replay says of each pass: candidates have guesses, what is revoked later has none before.
        for step in range(1, seen.nfe + 1):
            block = seen.block_at(step)
            later = set(seen.revoked_later(step).tolist())
            still_open = {i for i in range(block.start, block.end) if steps[i] >= step} - later
            assert set(np.flatnonzero(seen.guess[step - 1] >= 0)) == still_open
        commits = int((seen.commits > 0).sum())
        assert seen.commits.sum() == GEN_LENGTH
        assert commits <= seen.nfe <= GEN_LENGTH
        np.testing.assert_array_equal(seen.alternatives[:, 0], seen.tokens)


def test_a_streamed_token_is_taken_back(result):
    snapshots = list(dc.stream(two_layers(), PROMPTS[1], 12, config=config_of(dc.Saber())))
    np.testing.assert_array_equal(snapshots[-1].tokens, result.tokens[1])
    mask, reopened = two_layers().config.mask_token_id, 0
    for before, now in itertools.pairwise(snapshots):
        np.testing.assert_array_equal(now.tokens == mask, now.commit_step == 0)
        np.testing.assert_array_equal(np.isnan(now.confidence), now.commit_step == 0)
        assert (now.commit_step == 0).sum() < (before.commit_step == 0).sum()
        reopened += int(((before.commit_step > 0) & (now.commit_step == 0)).sum())
    assert reopened


def test_the_page_reads_the_guesses_of_what_was_revoked(result):
    """As its script does: of each pass the open positions of the block, but for those that stood."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', viewer.page(result), re.S)
    assert found
    (run,), seen, records = json.loads(found[1])["runs"], replay(result), 0
    for step, told in enumerate(run["passes"], start=1):
        block = seen.block_at(step)
        for p in range(block.start, block.end):
            records += not (0 < run["steps"][p] < step or p in told["standing"])
    assert records * (run["guess_bytes"] + 1) == len(base64.b64decode(run["guesses"]))
    assert any(told["standing"] for told in run["passes"])


@dc.policy
class TakesBackEverything:
    """What a loop must survive."""

    revokes = True

    def init(self, batch, gen_length):
        return None

    def __call__(self, prediction, candidates, start, memory):
        return dc.Change(candidates & (prediction.token % 2 == 0), ~candidates), None, None


@pytest.mark.parametrize("cache", [dc.NoCache(), pytest.param(dc.DualCache(), marks=pytest.mark.compiler)])
def test_the_loop_ends_and_nothing_given_is_taken_back(cache):
    model, config = two_layers(), config_of(TakesBackEverything(), cache=cache)
    tokens = np.random.default_rng(5).integers(0, 500, (2, 32)).astype(np.int32)
    open_ = np.zeros((2, 32), bool)
    open_[0, 8:28], open_[1, 10:30:2] = True, True
    lengths = jnp.array([28, 32])
    state = jax.jit(dc.init_state)(model, jnp.asarray(tokens), jnp.asarray(open_), lengths, config)
    step, revoked = jax.jit(dc.decode_step), 0
    while np.asarray(state.open).any():
        before = np.asarray(state.open).sum(axis=1)
        state, turn = step(model, state, config)
        now = np.asarray(state.open)
        committed, back = (np.asarray(x).sum(axis=1) for x in (turn.taken, turn.revoked))
        np.testing.assert_array_equal(committed - back, before - now.sum(axis=1))
        assert (now.sum(axis=1) < before)[before > 0].all()
        assert not (now & ~open_).any()
        np.testing.assert_array_equal(np.asarray(state.tokens)[~open_], tokens[~open_])
        np.testing.assert_array_equal(np.asarray(state.tokens)[now], model.config.mask_token_id)
        np.testing.assert_array_equal(np.asarray(state.commit_step) > 0, open_ & ~now)
        revoked += back.sum()
    assert revoked
    assert (np.asarray(state.nfe) <= open_.sum(axis=1)).all()


def test_an_end_that_may_be_revoked_ends_nothing():
    """An end-of-text token is settled when its block is done."""
    model = two_layers()
    state = dc.init_state(model, *canvas(), config_of(dc.Saber(), stop_at_eos=True))
    end = state.tokens.at[0, 12].set(model.config.eos_token_ids[0])
    shut = state.open.at[0, 12].set(False)
    changes = {"tokens": end, "open": shut, "commit_step": state.commit_step.at[0, 12].set(1)}
    changes |= {"block_start": jnp.array([12]), "block_end": jnp.array([24])}
    inside = dataclasses.replace(state, **changes)
    plain = config_of(dc.TopOne(), stop_at_eos=True)
    assert dc.is_live(model, inside, config_of(dc.Saber(), stop_at_eos=True)).tolist() == [True]
    assert dc.is_live(model, inside, plain).tolist() == [False]
    done = dataclasses.replace(inside, block_end=jnp.array([13]))
    assert dc.is_live(model, done, config_of(dc.Saber(), stop_at_eos=True)).tolist() == [False]


def canvas() -> tuple[jax.Array, jax.Array, jax.Array]:
    tokens = jnp.zeros((1, 12 + GEN_LENGTH), jnp.int32)
    return tokens, (jnp.arange(12 + GEN_LENGTH) >= 12)[None], jnp.array([12 + GEN_LENGTH])


@pytest.mark.parametrize(("says", "needed"), [(True, "must return a Change"), (False, "must return flags")])
def test_a_decision_of_another_kind_is_named(says, needed):
    @dc.policy
    class Wrong(dc.Select):
        revokes = says

        def __call__(self, prediction, candidates, start, memory):
            return (candidates if says else dc.Change(candidates, candidates)), None, None

    model, config = two_layers(), config_of(Wrong())
    with pytest.raises(ValueError, match=f"Wrong {needed}, got .*revokes = True"):
        jax.eval_shape(dc.decode_step, model, dc.init_state(model, *canvas(), config), config)
