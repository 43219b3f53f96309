"""Recipes and settings: what is wrong dies at construction, with the name, the value and what is allowed."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import depcap_jax as dc


@pytest.mark.parametrize("name", dc.RECIPES)
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_every_recipe_builds(name, cache):
    needed = {"delimiter_ids": (5,)} if name == "adablock" else {}
    config = dc.recipe(name, cache=cache, gen_length=64, **needed)
    assert config.gen_length == 64
    assert type(config.cache).__name__.lower() == f"{cache.replace('none', 'no')}cache"


def test_the_papers_defaults():
    config = dc.recipe("depcap")
    assert config == dc.DecodeConfig()
    assert config.partition == dc.DepGABlocks(
        l_min=8, l_max=128, top_k_cache=64, lambda_u=1.2, certainty_floor=0.0
    )
    assert config.select == dc.ConflictFree(tau_low=0.8, tau_high=0.95, gamma=-16.0)
    assert (config.gen_length, config.stop_at_eos, config.sampling) == (256, True, None)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("depcapp", {}, ["'depcapp'", "depcap", "vanilla"]),
        (None, {}, ["None", "depcap"]),
        ("depcap", {"threshold": 0.9}, ["'depcap'", "'threshold'", "tau_low"]),
        ("confidence", {"tau_low": 0.9}, ["'confidence'", "'tau_low'", "threshold"]),
        ("depcap", {"tau_low": 1.5}, ["tau_low", "1.5", "[0, 1]"]),
        ("depcap", {"tau_low": float("nan")}, ["tau_low", "nan"]),
        ("depcap", {"tau_high": "0.9"}, ["tau_high", "'0.9'"]),
        ("depcap", {"tau_low": None}, ["tau_low", "None"]),
        ("depcap", {"lambda_u": -1}, ["lambda_u", "-1", "at least 0"]),
        ("depcap", {"certainty_floor": -0.1}, ["certainty_floor", "-0.1"]),
        ("depcap", {"gamma": True}, ["gamma", "True"]),
        ("depcap", {"l_min": 0}, ["l_min", "0", "at least 1"]),
        ("depcap", {"l_min": 16, "l_max": 8}, ["l_max", "8", "at least 16"]),
        ("depcap", {"l_max": 8.5}, ["l_max", "8.5", "integer"]),
        ("depcap", {"top_k_cache": 0}, ["top_k_cache", "0"]),
        ("depcap", {"top_k_cache": 10**9}, ["top_k_cache", "1000000000", "[1, 1024]"]),
        ("depcap", {"l_max": 2**40}, ["l_max", "1099511627776", "[1, 2147483647]"]),
        ("depcap", {"gamma": 10**400}, ["gamma", "number"]),
        ("vanilla", {"block_length": 2**40}, ["block_length", "1099511627776", "[1, 2147483647]"]),
        ("adablock", {"delimiter_ids": (2**40,)}, ["delimiter_ids", "1099511627776"]),
        ("depcap", {"gen_length": 0}, ["gen_length", "0"]),
        ("depcap", {"stop_at_eos": "yes"}, ["stop_at_eos", "'yes'"]),
        ("depcap", {"cache": "both"}, ["cache", "'both'", "'dual'"]),
        ("depcap", {"temperature": -0.5}, ["temperature", "-0.5"]),
        ("depcap", {"temperature": 1.0, "top_p": 1.1}, ["top_p", "1.1"]),
        ("depcap", {"temperature": 1.0, "top_k": 0}, ["top_k", "0"]),
        ("cap", {"block_length": -3}, ["block_length", "-3"]),
        ("confidence", {"threshold": 2}, ["threshold", "2"]),
        ("confidence", {"threshold": np.array([0.1, 0.2])}, ["threshold", "0.1", "one number"]),
        ("factor", {"factor": -1.0}, ["factor", "-1.0"]),
        ("adablock", {}, ["delimiter_ids"]),
        ("adablock", {"delimiter_ids": ()}, ["delimiter_ids", "at least one"]),
        ("adablock", {"delimiter_ids": (-4,)}, ["delimiter_ids", "-4"]),
        ("adablock", {"delimiter_ids": (4,), "delimiter_threshold": 7}, ["delimiter_threshold", "7"]),
    ],
)
def test_bad_settings_name_themselves(name, settings, words):
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        dc.recipe(name, **settings)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_thresholds_are_data_and_lengths_are_not():
    one, two = dc.recipe("depcap", tau_low=0.5), dc.recipe("depcap", tau_low=0.9, gamma=-3.0, lambda_u=0.1)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert len(jax.tree.leaves(one)) == 5
    assert jax.tree.structure(one) != jax.tree.structure(dc.recipe("depcap", l_max=64))
    assert jax.tree.structure(one) != jax.tree.structure(dc.recipe("depcap", gen_length=64))


def test_policies_survive_any_rebuilding():
    config = dc.recipe("depcap", cache="dual", temperature=0.7, top_p=0.9)
    assert jax.tree.map(lambda leaf: leaf, config) == config
    placeholders = jax.tree.map(lambda leaf: object(), config)  # what JAX does while transforming
    assert jax.tree.structure(placeholders) == jax.tree.structure(config)
    dc.ConflictFree(tau_low=jnp.float32(0.3))  # an array is a value too


def test_no_length_exceeds_the_answer():
    """Shapes follow it, whatever a policy claims."""

    @dc.policy
    class Endless(dc.FixedBlocks):
        window: int = dataclasses.field(default=2**31 - 1, metadata={"static": True})

        def lengths(self, gen_length: int) -> dc.Lengths:
            return dc.Lengths(2**30, 2**30, self.window)

    assert dc.DecodeConfig(partition=Endless(), gen_length=16).sizes[:4] == (16, 16, 16, 16)
    absurd = Endless(window=10**12)
    with pytest.raises(
        ValueError, match=r"Endless.lengths: window must be .* \[1, 2147483647\], got 1000000"
    ):
        _ = dc.DecodeConfig(partition=absurd, gen_length=16).sizes
