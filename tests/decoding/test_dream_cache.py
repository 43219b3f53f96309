"""Dream predicts position i from i - 1, so a cached step recomputes t - 1 as a query."""

from __future__ import annotations

import dataclasses

import golden_runs
import numpy as np
import pytest

import depcap_jax as dc
from depcap_jax.decoding.reference import decode_eagerly

PROMPT = np.random.default_rng(5).integers(0, 500, 19).tolist()


def run(config: dc.DecodeConfig) -> dc.DecodeResult:
    return dc.generate(golden_runs.model("dream"), np.array([PROMPT]), config=config)


@pytest.mark.parametrize("cache", [pytest.param("prefix", marks=pytest.mark.compiler), "dual"])
def test_one_block_refreshed_at_every_step_is_no_cache(cache):
    settings = {"gen_length": 32, "block_length": 32, "stop_at_eos": False}
    plain = run(dc.recipe("cap", **settings))
    cached = dc.recipe("cap", cache=cache, **settings)
    policy = {"prefix": dc.PrefixCache, "dual": dc.DualCache}[cache]
    always = dataclasses.replace(cached, cache=policy(refresh_every=1))
    refreshed, stale = run(always), run(cached)
    for field in ("tokens", "nfe", "commit_step"):
        np.testing.assert_array_equal(getattr(refreshed, field), getattr(plain, field))
    if cache == "dual":
        assert (np.asarray(stale.tokens) != np.asarray(plain.tokens)).any(), "the cache is to matter here"


@pytest.mark.parametrize("cache", [pytest.param("prefix", marks=pytest.mark.compiler), "dual"])
@pytest.mark.parametrize("name", [pytest.param("vanilla", marks=pytest.mark.compiler), "depcap"])
def test_the_first_token_of_a_block_obeys_the_rule_of_all_others(name, cache):
    """Pass for pass what the eager twin does, which knows no special first token."""
    sizes = {"block_length": 8} if name == "vanilla" else {"l_min": 4, "l_max": 16, "tau_low": 0.5}
    config = dc.recipe(name, cache=cache, gen_length=32, stop_at_eos=False, **sizes)
    result = run(config)
    expected = decode_eagerly(golden_runs.model("dream"), PROMPT, config)
    assert result.tokens[0].tolist() == expected.tokens
    assert result.commit_step[0].tolist() == expected.commit_step
    assert int(result.nfe[0]) == expected.nfe
    starts = np.cumsum([0, *expected.block_sizes[:-1]])
    firsts = np.array(expected.commit_step)[starts]
    opened = [min(expected.commit_step[s : s + n]) for s, n in zip(starts, expected.block_sizes, strict=True)]
    assert (firsts > np.array(opened)).any(), "some block's first token is not its first commit"
