"""Every policy has a name, and any two of them make a decoder by their names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.policy import settings_of

NEEDED = {"adablock": {"delimiter_ids": (5,)}}


def policies(protocol: type[Any]) -> set[type[Any]]:
    """All public ones: what inherits from the Protocol."""
    every = [getattr(dc, name) for name in dc.__all__]
    return {each for each in every if inspect.isclass(each) and protocol in each.__mro__[1:]}


@pytest.mark.parametrize(("protocol", "known"), [(dc.Partition, dc.PARTITIONS), (dc.Select, dc.SELECTS)])
def test_every_policy_has_a_name(protocol: type[Any], known: Mapping[str, dc.Family]):
    assert {family.policy for family in known.values()} == policies(protocol)
    assert len(policies(protocol)) >= 5
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in known)


def test_what_a_family_sweeps_is_a_setting_from_slow_to_fast():
    for name, family in {**dc.PARTITIONS, **dc.SELECTS}.items():
        declared = {setting.name: setting for setting in settings_of(family.policy)}
        assert set(family.settings) | {family.swept} <= {*declared, ""}, name
        assert bool(family.swept) == bool(family.values), name
        for value in family.values:
            declared[family.swept].check(value)
        ascending = sorted(family.values)
        assert list(family.values) in (ascending, ascending[::-1]), name
        assert len(set(family.values)) == len(family.values), name


def test_a_setting_of_a_partition_and_of_a_selection_is_one():
    """A decoder of the two gets it once, so it must mean the same to both."""
    partitions, selects = (
        {setting for family in known.values() for setting in settings_of(family.policy)}
        for known in (dc.PARTITIONS, dc.SELECTS)
    )
    shared = {setting.name for setting in partitions} & {setting.name for setting in selects}
    assert shared == {setting.name for setting in partitions & selects}
    assert dc.recipe_settings("depga+stable").count("top_k_cache") == 1


@pytest.mark.parametrize("partition", dc.PARTITIONS)
@pytest.mark.parametrize("select", dc.SELECTS)
def test_two_names_are_a_recipe(partition: str, select: str):
    family = dc.SELECTS[select]
    point = {family.swept: family.values[-1]} if family.values else {}
    needed = NEEDED.get(partition, {})
    config = dc.recipe(f"{partition}+{select}", cache="dual", gen_length=64, **point, **needed)
    expected = dc.DecodeConfig(
        partition=dc.PARTITIONS[partition].policy(**dc.PARTITIONS[partition].settings, **needed),
        select=family.policy(**point),
        cache=dc.DualCache(),
        gen_length=64,
    )
    assert config == expected
    assert set(point) < set(dc.recipe_settings(f"{partition}+{select}"))


def test_the_papers_recipes_are_among_them():
    pairs = {"vanilla": "fixed-32+top-one", "confidence": "fixed-32+confidence", "factor": "fixed-32+factor"}
    pairs |= {
        "cap": "fixed-32+cap",
        "depga": "depga+confidence",
        "depcap": "depga+cap",
    }
    for name, pair in pairs.items():
        assert dc.recipe(name, gen_length=64) == dc.recipe(pair, gen_length=64)
    assert dc.recipe("spread") == dc.recipe("sliding+spread", longest=64)
    ada = {"delimiter_ids": (3, 4), "delimiter_threshold": 0.5}
    assert dc.recipe("adablock", **ada) == dc.recipe("adablock+confidence", **ada)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("depgaa+cap", {}, "unknown partition 'depgaa'; known: fixed-16, .*depga"),
        ("depga+capp", {}, "unknown selection 'capp'; known: top-one, .*cap"),
        ("depga+", {}, "unknown selection ''"),
        ("depga+cap+cap", {}, r"unknown selection 'cap\+cap'"),
        ("fixed-16+cap", {"block_length": 32}, r"'fixed-16\+cap' has no setting 'block_length'"),
        ("depga+frechet", {"tau_low": 0.5}, "has no setting 'tau_low'; it has: l_min, .*delta, cache"),
        ("depga+frechet", {"delta": 2.0}, r"delta must be a number in \[0, 1\], got 2.0"),
        ("adablock+frechet", {}, "needs delimiter_ids"),
    ],
)
def test_a_wrong_pair_says_what_is_wrong(name: str, settings: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        dc.recipe(name, **settings)


@pytest.mark.compiler
@pytest.mark.parametrize("partition", ["sliding", "adablock"])
@pytest.mark.parametrize("select", ["credit", "dream-schedule", "entropy-bound"])
def test_pairs_that_no_paper_has_decode(partition: str, select: str):
    """What remembers beside a window that moves, and what wants one block beside many."""
    config = dc.recipe(f"{partition}+{select}", gen_length=16, **NEEDED.get(partition, {}))
    result = dc.generate(small_model("llada"), np.arange(2, 10)[None], np.array([8]), config=config)
    assert result.status[0] == dc.Status.OK
    assert (np.asarray(result.tokens) != small_model("llada").config.mask_token_id).all()
