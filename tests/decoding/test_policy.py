"""A setting is declared once: its check, its kind, whether it is data, and its place in the recipes."""

from __future__ import annotations

import dataclasses
import inspect

import chex
import jax
import jax.numpy as jnp
import pytest

import depcap_jax as dc
from depcap_jax.decoding import recipes
from depcap_jax.decoding.policy import settings_of

PARTS = {
    "vanilla": (dc.FixedBlocks, dc.TopOne),
    "confidence": (dc.FixedBlocks, dc.ConfidenceThreshold),
    "factor": (dc.FixedBlocks, dc.FactorThreshold),
    "adablock": (dc.AdaBlocks, dc.ConfidenceThreshold),
    "depga": (dc.DepGABlocks, dc.ConfidenceThreshold),
    "cap": (dc.FixedBlocks, dc.ConflictFree),
    "depcap": (dc.DepGABlocks, dc.ConflictFree),
    "spread": (dc.SlidingWindow, dc.Spread),
}
OWN_DEFAULTS = {"spread": {"longest": 64}}
"""Where a recipe's default is not its policy's."""


@dc.policy
class Example:
    """One setting of each kind."""

    share: float = dc.setting(default=0.5, low=0, high=1, doc="a share")
    count: int = dc.setting(default=3, low=1, doc="a count")
    flag: bool = dc.setting(default=False, doc="a flag")
    ids: tuple[int, ...] = dc.setting(default=(1, 2), low=0, doc="some ids")
    most: int | None = dc.setting(default=None, kind=int, low=1, doc="a count, or none")
    period: int = dc.setting(default=0, low=0, static=False, doc="a count that is data")

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("count must not be 13")


@pytest.mark.parametrize("name", dc.RECIPES)
def test_a_recipe_has_the_settings_of_its_policies_with_their_defaults(name):
    partition, select = PARTS[name]
    declared = {s.name: s.default for s in (*settings_of(partition), *settings_of(select))}
    declared |= OWN_DEFAULTS.get(name, {})
    parameters = inspect.signature(getattr(dc, name)).parameters
    written = {n: p.default for n, p in parameters.items() if n != "common"}
    assert {
        n: dataclasses.MISSING if d is inspect.Parameter.empty else d for n, d in written.items()
    } == declared
    assert dc.recipe_settings(name)[: len(declared)] == tuple(declared)
    given = {"delimiter_ids": (5,)} if name == "adablock" else {}
    config = getattr(dc, name)(cache=dc.DualCache(), gen_length=64, **given)
    assert (type(config.partition), type(config.select)) == (partition, select)
    assert config == dc.recipe(name, cache="dual", gen_length=64, **given)
    assert config == dc.recipe(name, cache=dc.DualCache(), gen_length=64, **given)


def test_every_setting_says_what_it_means():
    assert set(recipes.SETTINGS) == {
        name for recipe in dc.RECIPES for name in dc.recipe_settings(recipe) if name != "cache"
    }
    assert all(setting.doc for setting in recipes.SETTINGS.values())


def test_policies_are_keyword_only():
    for wrong in (
        lambda: dc.DualCache(0.5),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.DualCache(keep_suffix=False),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.PrefixCache(keep_suffix=True),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.ConfidenceThreshold(0.9),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.DecodeConfig(dc.FixedBlocks()),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.Sampling(1.0),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.depcap(8),  # type: ignore[call-arg]  # the mistake meant
        lambda: dc.depcap(threshold=0.9),  # type: ignore[call-arg]  # the mistake meant
    ):
        with pytest.raises(TypeError):
            wrong()
    assert dc.DualCache().keep_suffix
    assert not dc.PrefixCache(quorum=0.5).keep_suffix


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.5}, r"share must be a number in \[0, 1\], got 1.5"),
        ({"share": "half"}, r"share must be a number in \[0, 1\], got 'half'"),
        ({"share": None}, r"share must be a number in \[0, 1\], got None"),
        ({"share": float("nan")}, r"share must be a number in \[0, 1\], got nan"),
        ({"count": 0}, "count must be an integer of at least 1, got 0"),
        ({"count": 2.5}, "count must be an integer of at least 1, got 2.5"),
        ({"count": jnp.int32(3)}, "count must be an integer of at least 1"),
        ({"count": True}, "count must be an integer of at least 1, got True"),
        ({"count": 13}, "count must not be 13"),
        ({"flag": 1}, "flag must be True or False, got 1"),
        ({"ids": ()}, "ids must hold at least one integer"),
        ({"ids": 7}, "ids must be a tuple of integers, got 7"),
        ({"ids": (3, -1)}, "ids must be an integer of at least 0, got -1"),
        ({"most": 0}, "most must be an integer of at least 1, got 0"),
        ({"period": -1}, "period must be an integer of at least 0, got -1"),
    ],
)
def test_wrong_values_die_when_a_policy_is_made(settings, message):
    with pytest.raises(ValueError, match=message):
        Example(**settings)


def test_a_subclass_keeps_its_parents_checks():
    @dc.policy
    class Mine(dc.DepGABlocks):
        bonus: int = dc.setting(default=0, low=0, doc="something more")

    assert Mine(bonus=3).l_max == 128
    with pytest.raises(ValueError, match="l_max must be an integer of at least 16, got 8"):
        Mine(l_min=16, l_max=8)
    with pytest.raises(ValueError, match="bonus must be an integer of at least 0, got -1"):
        Mine(bonus=-1)


def test_numbers_of_kind_float_are_data_and_the_rest_is_static():
    one, two = Example(share=1), Example(share=0.25, period=4)
    assert isinstance(one.share, float)
    assert Example(ids=[3, 4]).ids == (3, 4)  # type: ignore[arg-type]  # any sequence will do
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert jax.tree.leaves(two) == [0.25, 4]
    for other in (Example(count=4), Example(flag=True), Example(ids=(1,)), Example(most=2)):
        assert jax.tree.structure(other) != jax.tree.structure(one)
    assert dc.policy(type("Empty", (), {"__annotations__": {}}))() is not None


def test_jax_rebuilds_what_it_likes():
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf, Example(share=0.1)), Example(share=0.1))
    jax.tree.map(lambda leaf: object(), Example())  # placeholders are not checked
    assert jax.jit(lambda p: p.share * 2)(Example(share=jnp.float32(0.25))) == 0.5
    many = dc.ConfidenceThreshold(threshold=jnp.array([0.1, 0.2]))
    assert jax.vmap(lambda p: p.threshold)(many).shape == (2,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Example().count = 4  # type: ignore[misc]  # the mistake meant
