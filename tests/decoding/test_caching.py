"""Spans, margins and cheaper block starts: what the eager twin does, row by row, however rows are grouped."""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.caching import Sizes, block_widths, suffix_widths
from depcap_jax.decoding.compute.spans import Widths, busy
from depcap_jax.decoding.reference import decode_eagerly

LENGTHS = np.array([5, 23, 12])
IDS = np.random.default_rng(7).integers(0, 500, (len(LENGTHS), 24)).astype(np.int32)
GEN_LENGTH = 40


two_layers = functools.partial(small_model, num_layers=2)


def config_of(cache: dc.Cache) -> dc.DecodeConfig:
    return dc.depcap(
        cache=cache,
        gen_length=GEN_LENGTH,
        stop_at_eos=False,
        l_min=4,
        l_max=16,
        lambda_u=0.6,
        tau_low=0.3,
        gamma=-8.0,
    )


def decode(family: str, cache: dc.Cache) -> dc.DecodeResult:
    return dc.generate(two_layers(family), IDS, LENGTHS, config=config_of(cache), trace=True)


in_ci = pytest.mark.compiler
SETTINGS = [
    dc.DualCache(margin=6, together=1),
    pytest.param(
        dc.DualCache(refresh_after=9, prompt_every=2, refresh_every=3, margin=2, margin_after=3), marks=in_ci
    ),
    pytest.param(dc.PrefixCache(margin=5), marks=in_ci),
    pytest.param(dc.PrefixCache(prompt_every=3, quorum=0.5), marks=in_ci),
    pytest.param(dc.PrefixCache(refresh_every=2, prompt_every=2, together=64), marks=in_ci),
    pytest.param(dc.DualCache(prompt_every=1000, together=64, quorum=1.0), marks=in_ci),
    pytest.param(dc.DualCache(refresh_after=16), marks=in_ci),
    pytest.param(dc.NoCache(together=1), marks=in_ci),
]


@pytest.mark.parametrize("cache", SETTINGS)
@pytest.mark.parametrize("family", ["llada", pytest.param("dream", marks=in_ci)])
def test_each_row_of_a_batch_is_decoded_as_the_twin_does_alone(family, cache):
    result = decode(family, cache)
    for row, length in enumerate(LENGTHS):
        expected = decode_eagerly(two_layers(family), IDS[row, :length].tolist(), config_of(cache))
        assert result.tokens[row].tolist() == expected.tokens
        assert result.commit_step[row].tolist() == expected.commit_step
        sizes = [size for size in result.block_sizes[row].tolist() if size]
        assert (int(result.nfe[row]), sizes) == (expected.nfe, expected.block_sizes)


@st.composite
def caches(draw: st.DrawFn) -> dc.Cache:
    """Any cache that keeps something, with whatever settings."""
    settings: dict[str, Any] = {
        "margin": draw(st.sampled_from([0, 1, 6, 1000])),
        "refresh_every": draw(st.integers(0, 4)),
        "refresh_after": draw(st.sampled_from([0, 1, 9, 1000])),
        "prompt_every": draw(st.integers(1, 3)),
        "quorum": draw(st.floats(0, 1)),
        "together": draw(st.sampled_from([None, 0, 1, 24])),
    }
    if draw(st.booleans()):
        return dc.PrefixCache(**settings)
    return dc.DualCache(**settings, margin_after=draw(st.sampled_from([0, 3, 1000])))


@pytest.mark.compiler
@settings(max_examples=3, deadline=None, derandomize=True)
@given(cache=caches(), order=st.permutations([0, 1, 2, 2]))
def test_a_row_is_answered_alike_in_any_batch(cache, order):
    """Beside other rows, in another order, twice in a batch, and in a wider one, as it is alone."""
    model, config = two_layers("llada"), config_of(cache)
    wide = np.pad(IDS[order], ((0, 0), (0, 8)))
    together = dc.generate(model, wide, LENGTHS[order], config=config)
    for place, row in enumerate(order):
        alone = dc.generate(model, IDS[row : row + 1], LENGTHS[row : row + 1], config=config)
        for field in ("tokens", "nfe", "commit_step", "block_sizes", "status"):
            np.testing.assert_array_equal(getattr(together, field)[place], getattr(alone, field)[0])


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("cache", "whole"),
    [
        (dc.DualCache(), dc.DualCache(margin=1000, margin_after=2**31 - 1)),
        (dc.PrefixCache(), dc.PrefixCache(margin=1000)),
    ],
    ids=["dual", "prefix"],
)
def test_margins_over_the_whole_canvas_are_no_cache(family, cache, whole):
    plain, stale, renewed = (decode(family, each) for each in (dc.NoCache(), cache, whole))
    assert not np.array_equal(plain.tokens, stale.tokens), "the cache is to matter here"
    for field in ("tokens", "nfe", "commit_step", "block_sizes"):
        np.testing.assert_array_equal(getattr(renewed, field), getattr(plain, field))


def test_a_trace_tells_what_a_pass_had_to_compute_and_what_it_did():
    """A refresh needs a row's whole length, a step its block and margin; widths hold that."""
    result = decode("llada", dc.DualCache(margin=6, together=1))
    told = result.trace.cache
    for row, length in enumerate(LENGTHS):
        passes = int(result.nfe[row])
        refresh, needed, width = (np.asarray(x[row])[:passes] for x in told)
        assert refresh.sum() == np.count_nonzero(result.block_sizes[row])
        assert set(needed[refresh]) == {length + GEN_LENGTH}
        sizes = np.asarray(result.block_sizes[row])[np.cumsum(refresh) - 1]
        starts = np.cumsum([0, *np.asarray(result.block_sizes[row])])[np.cumsum(refresh) - 1]
        margin = np.minimum(6, length + starts)
        np.testing.assert_array_equal(needed[~refresh], (sizes + margin)[~refresh])
        compiled = np.array([8 + 6, 16 + 6, 40 + 16, 40 + 24])  # a short prompt has a width of its own
        np.testing.assert_array_equal(width, compiled[np.searchsorted(compiled, needed)])
        assert not any(np.asarray(x[row])[passes:].any() for x in told), "a row that is done computes nothing"


@pytest.mark.parametrize(
    ("needed", "active", "expected"),
    [
        ([10, 16, 1], [1, 1, 1], [1, 1, 1]),
        ([10, 30, 1], [1, 1, 1], [2, 2, 2]),  # narrow ones share the widest of theirs
        ([10, 300, 60], [1, 1, 1], [1, 4, 3]),  # wide ones run alone
        ([10, 300, 30], [0, 1, 0], [0, 4, 0]),
    ],
)
def test_widths(needed, active, expected):
    widths = Widths.plan((16, 32, 100), 3, 400, together=96)
    assert widths == Widths((16, 32, 100, 400), (3, 3, 1, 1))
    chosen = widths.choose(jnp.asarray(needed, jnp.int32), jnp.asarray(active, bool))
    assert chosen.tolist() == expected


def test_rows_that_run_one_by_one_share_nothing():
    widths = Widths.plan((16, 32, 100), 3, 400, together=1)
    assert widths.rows == (1, 1, 1, 1)
    assert widths.choose(jnp.array([10, 300, 30], jnp.int32), jnp.ones(3, bool)).tolist() == [1, 4, 2]


@pytest.mark.parametrize(
    ("batch", "together", "rows"),
    [
        (8, 512, (8, 4, 1)),
        (6, 512, (6, 3, 1)),
        (1, 1, (1, 1, 1)),
        (6, 0, (6, 6, 6)),  # all of them
        (64, 1024, (64, 8, 2)),  # a group has 8 rows at most; where more would fit, the whole batch runs
    ],
)
def test_rows_in_a_group(batch, together, rows):
    assert Widths.plan((64, 128), batch, 384, together).rows == rows


def test_models_that_are_slow_to_read_run_more_positions_at_once():
    def weights(megabytes: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {"kernel": jax.ShapeDtypeStruct((megabytes, 2**20), jnp.int8)}

    assert [busy(cast(Any, weights(size))) for size in (32, 33)] == [32, 128]


def test_few_widths_that_waste_little():
    """Of a suffix at most a fifth of the answer is computed beyond it, and on average a tenth."""
    widths = suffix_widths(Sizes(256, 8, 128, 256))
    assert widths == (48, 96, 144, 192, 240, 256)
    beyond = [min(width for width in widths if width >= left) - left for left in range(1, 257)]
    assert max(beyond) < 256 / 5
    assert np.mean(beyond) < 256 / 10
    assert suffix_widths(Sizes(40, 4, 16, 32)) == (16, 32, 40)
    assert suffix_widths(Sizes(8, 4, 8, 8)) == (8,)
    assert block_widths(Sizes(256, 8, 128, 256)) == (8, 32, 128)


@pytest.mark.parametrize("quorum", [1.5, np.nan])
def test_no_quorum_makes_the_loop_wait_for_ever(quorum):
    """Numbers that come as arrays are not checked: if all rows are due, they run."""
    model, cache = two_layers("llada"), dc.DualCache(quorum=jnp.float32(quorum))
    state = jax.jit(dc.start)(model, IDS, LENGTHS.astype(np.int32), config_of(cache))
    _, told = jax.jit(dc.decode_step)(model, state, config_of(cache))
    assert told.active.all()


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [("margin", -1, "at least 0"), ("prompt_every", 0, "at least 1"), ("refresh_after", 1.5, "an integer")],
)
def test_bad_settings_are_named(setting, value, allowed):
    with pytest.raises(ValueError, match=f"{setting} must be .*{allowed}.*got {value}"):
        dc.DualCache(**{setting: value})
