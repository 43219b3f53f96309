"""A row's answer never depends on its neighbours, its place, its padding or when the others stop."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc

LENGTHS = np.array([5, 23, 12, 30])
CACHES = {"prefix": dc.PrefixCache, "dual": dc.DualCache}


def prompts(width: int = 32) -> np.ndarray:
    return np.random.default_rng(7).integers(0, 500, (len(LENGTHS), 64)).astype(np.int32)[:, :width]


def config_of(cache: str, **changes) -> dc.DecodeConfig:
    settings = {"gen_length": 48, "l_min": 2, "l_max": 16, "lambda_u": 0.6, "tau_low": 0.3, "gamma": -8.0}
    return dc.recipe("depcap", **{"cache": cache, "stop_at_eos": False, **settings, **changes})


def answers(model, ids, lengths, config, key=None) -> list[tuple]:
    result = dc.generate(model, ids, lengths, config=config, key=key)
    fields = result.tokens, result.nfe, result.block_sizes, result.commit_step, result.lengths
    return [tuple(np.asarray(field[row]).tolist() for field in fields) for row in range(len(lengths))]


@pytest.mark.parametrize(
    "cache", [*(pytest.param(c, marks=pytest.mark.compiler) for c in ("none", "prefix")), "dual"]
)
@pytest.mark.parametrize("family", ["llada", pytest.param("dream", marks=pytest.mark.compiler)])
def test_alone_in_a_batch_in_any_order_and_padding(family, cache):
    model, config, ids = small_model(family), config_of(cache), prompts()
    together = answers(model, ids, LENGTHS, config)
    assert len({row[0].__str__() for row in together}) == len(LENGTHS), "the rows are to differ"

    order = [2, 0, 3, 1]
    assert answers(model, ids[order], LENGTHS[order], config) == [together[i] for i in order]
    # What stands in the padding does not matter, nor how much of it there is.
    other = ids.copy()
    other[np.arange(32) >= LENGTHS[:, None]] = 17
    assert answers(model, other, LENGTHS, config) == together
    for i in (0, 3):
        assert answers(model, prompts(40)[i : i + 1], LENGTHS[i : i + 1], config) == together[i : i + 1]
    if cache != "none":
        # Rows may wait for each other, so that they refresh in one turn.
        patient = dataclasses.replace(config, cache=CACHES[cache](quorum=1.0))
        assert answers(model, ids, LENGTHS, patient) == together


@pytest.mark.compiler
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_stopping_at_the_end_of_text_changes_no_visible_token(cache):
    """Three rows whose answers reach an end-of-text token at different times, and one that never does."""
    model, ids = small_model("llada"), prompts()
    full = dc.generate(model, ids, LENGTHS, config=config_of(cache))
    tokens = np.asarray(full.tokens)
    ends = tuple(sorted({int(tokens[0, 3]), int(tokens[1, 20]), int(tokens[2, 40])}))
    stops = [next((j for j in range(48) if row[j] in ends), 48) for row in tokens]
    assert min(stops) < 20
    model = with_eos(model, ends)
    stopped = dc.generate(model, ids, LENGTHS, config=config_of(cache, stop_at_eos=True))
    for row, stop in enumerate(stops):
        assert stopped.lengths[row] == stop
        visible = slice(0, stop + 1)  # the end-of-text token itself stays
        np.testing.assert_array_equal(stopped.tokens[row, visible], tokens[row, visible])
        assert (np.asarray(stopped.tokens[row, stop + 1 :]) == model.config.pad_token_id).all()
        assert stopped.nfe[row] <= full.nfe[row]
    assert stopped.nfe[int(np.argmin(stops))] < full.nfe[int(np.argmin(stops))]
    # Running on does not change what counts as visible.
    ran_on = dc.generate(model, ids, LENGTHS, config=config_of(cache))
    np.testing.assert_array_equal(ran_on.lengths, stopped.lengths)
    np.testing.assert_array_equal(ran_on.tokens, full.tokens)


def with_eos(model: dc.Transformer, ends: tuple[int, ...]) -> dc.Transformer:
    """The same weights under a config with other end-of-text ids."""
    fresh = dc.Transformer.abstract(dataclasses.replace(model.config, eos_token_ids=ends))
    return jax.tree.unflatten(jax.tree.structure(fresh), jax.tree.leaves(model))


@pytest.mark.compiler
def test_driving_the_loop_and_swapping_rows():
    """`decode_step` by hand: a finished row makes place for a new prompt, and nobody notices."""
    model, config, ids = small_model("llada"), config_of("dual"), prompts()
    expected = answers(model, ids, LENGTHS, config)
    step, begin = jax.jit(dc.decode_step), jax.jit(dc.start)
    finish, is_live, swap = jax.jit(dc.finish), jax.jit(dc.is_live), jax.jit(dc.swap_rows)
    state = begin(model, ids[:2], jnp.asarray(LENGTHS[:2]), config)
    rows: list[int | None] = [0, 1]
    waiting, finished = [2, 3], {}
    for _ in range(400):
        result = finish(model, state, config)
        for slot in np.flatnonzero(~np.asarray(is_live(model, state, config))):
            if rows[slot] is None:
                continue
            fields = result.tokens, result.nfe, result.block_sizes, result.commit_step, result.lengths
            finished[rows[slot]] = tuple(np.asarray(field[slot]).tolist() for field in fields)
            rows[slot] = waiting.pop(0) if waiting else None
            if rows[slot] is not None:
                new = [rows[slot]] * 2
                fresh = begin(model, ids[new], jnp.asarray(LENGTHS[new]), config)
                state = swap(state, jnp.arange(2) == slot, fresh)
        if rows == [None, None]:
            break
        before = np.asarray(state.open).sum()
        state, turn = step(model, state, config)
        assert int(turn.taken.sum()) == before - np.asarray(state.open).sum()
        assert np.asarray(state.open).sum() < before, "no turn goes by without a commit"
    assert [finished[i] for i in range(4)] == expected


@pytest.mark.compiler
@pytest.mark.parametrize("settings", [{"temperature": 0.7}, {"temperature": 1.0, "top_p": 0.9, "top_k": 40}])
def test_sampling_follows_the_key_and_not_the_batch(settings):
    model, ids = small_model("llada"), prompts()
    config = config_of("dual", gen_length=24, **settings)
    key = jax.random.key(3)
    together = answers(model, ids, LENGTHS, config, key)
    assert answers(model, ids, LENGTHS, config, key) == together
    assert answers(model, ids[1:2], LENGTHS[1:2], config, key) == together[1:2]
    assert answers(model, ids, LENGTHS, config, jax.random.key(4)) != together
    greedy = answers(model, ids, LENGTHS, config_of("dual", gen_length=24))
    assert together != greedy
    # One key per row: equal prompts, different answers; and each row's is what its key alone gives.
    same = np.repeat(ids[:1], 4, axis=0)
    keys = jax.random.split(key, 4)
    drawn = answers(model, same, LENGTHS[[0] * 4], config, keys)
    assert len({row[0].__str__() for row in drawn}) > 1
    assert answers(model, same[:1], LENGTHS[:1], config, keys[2]) == drawn[2:3]
    old_style = answers(model, ids, LENGTHS, config, jax.random.PRNGKey(3))
    assert old_style == together
