"""How to decode: a partition, a selection and a cache; the rows of the paper's tables by name, and ours.

A recipe is a function whose arguments are the settings of its policies: `depcap(l_max=64,
cache=DualCache())`. `recipe(name, ...)` is the one door for names that come from outside: a command line,
a file, a sweep. It also makes a decoder of any two policies by their names: `recipe("sliding+frechet")`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import jax

from depcap_jax.decoding.caching import Cache, DualCache, NoCache, PrefixCache, Sizes
from depcap_jax.decoding.compute.prediction import Sampling
from depcap_jax.decoding.field.families import PARTITIONS, SELECTS, Family
from depcap_jax.decoding.field.sparse import SparseCache
from depcap_jax.decoding.field.spread import Spread
from depcap_jax.decoding.field.windows import SlidingWindow
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks, Partition
from depcap_jax.decoding.policy import Number, Setting, check_integer, policy, setting, settings_of
from depcap_jax.decoding.select import ConfidenceThreshold, ConflictFree, FactorThreshold, Select, TopOne


@policy
class DecodeConfig:
    """A decoder. Any partition goes with any selection and any cache.

    It is a pytree: thresholds are data, so a sweep of them runs one compiled program; lengths are static.
    """

    partition: Partition = dataclasses.field(default_factory=DepGABlocks)
    """How far does the next block reach?"""
    select: Select = dataclasses.field(default_factory=ConflictFree)
    """Which positions now?"""
    cache: Cache = dataclasses.field(default_factory=NoCache)
    """What is recomputed, what is reused?"""
    sampling: Sampling | None = None
    """How tokens are drawn; None takes the most likely one."""
    gen_length: int = setting(default=256, low=1, doc="positions of an answer")
    stop_at_eos: bool = setting(default=True, doc="end an answer at its end-of-text token, or fill all of it")

    def __post_init__(self) -> None:
        examples = {"partition": "DepGABlocks()", "select": "TopOne()", "cache": "DualCache()"}
        if self.sampling is not None:
            examples["sampling"] = "Sampling(temperature=0.7)"
        for name, example in examples.items():
            value = getattr(self, name)
            if isinstance(value, type) or not callable(value):
                raise ValueError(f"{name} must be a policy, such as {example}, got {value!r}")
            if jax.tree_util.all_leaves([value]):
                raise ValueError(f"{name} must be a pytree, as @policy makes its class, got {value!r}")

    @property
    def sizes(self) -> Sizes:
        """The lengths that shapes depend on; none exceeds the answer."""
        lengths = self.partition.lengths(self.gen_length)
        for name, value in lengths._asdict().items():
            check_integer(f"{type(self.partition).__name__}.lengths: {name}", value, low=1)
        shortest, longest, window = (min(length, self.gen_length) for length in lengths)
        return Sizes(self.gen_length, shortest, longest, max(window, longest))


class Common(TypedDict, total=False):
    """The settings that every recipe has."""

    cache: Cache
    gen_length: int
    stop_at_eos: bool
    temperature: Number
    top_p: Number | None
    top_k: int | None


def vanilla(*, block_length: int = FixedBlocks.block_length, **common: Unpack[Common]) -> DecodeConfig:
    """LLaDA's own decoding: the most confident position of the block on each pass."""
    return _compose(FixedBlocks, TopOne, locals())


def confidence(
    *,
    block_length: int = FixedBlocks.block_length,
    threshold: Number = ConfidenceThreshold.threshold,
    **common: Unpack[Common],
) -> DecodeConfig:
    """Fast-dLLM with a threshold: all positions of the block that are confident enough."""
    return _compose(FixedBlocks, ConfidenceThreshold, locals())


def factor(
    *,
    block_length: int = FixedBlocks.block_length,
    factor: Number = FactorThreshold.factor,
    **common: Unpack[Common],
) -> DecodeConfig:
    """Fast-dLLM with a factor: the more positions, the more confident they must be."""
    return _compose(FixedBlocks, FactorThreshold, locals())


def adablock(
    *,
    delimiter_ids: tuple[int, ...],
    default_block_length: int = AdaBlocks.default_block_length,
    delimiter_threshold: Number = AdaBlocks.delimiter_threshold,
    threshold: Number = ConfidenceThreshold.threshold,
    **common: Unpack[Common],
) -> DecodeConfig:
    """AdaBlock: blocks that end with a delimiter, usually a line break."""
    return _compose(AdaBlocks, ConfidenceThreshold, locals())


def depga(
    *,
    l_min: int = DepGABlocks.l_min,
    l_max: int = DepGABlocks.l_max,
    top_k_cache: int = DepGABlocks.top_k_cache,
    lambda_u: Number = DepGABlocks.lambda_u,
    certainty_floor: Number = DepGABlocks.certainty_floor,
    threshold: Number = ConfidenceThreshold.threshold,
    **common: Unpack[Common],
) -> DecodeConfig:
    """DepGA-Block with a threshold: the paper's partition alone."""
    return _compose(DepGABlocks, ConfidenceThreshold, locals())


def cap(
    *,
    block_length: int = FixedBlocks.block_length,
    tau_low: Number = ConflictFree.tau_low,
    tau_high: Number = ConflictFree.tau_high,
    gamma: Number = ConflictFree.gamma,
    **common: Unpack[Common],
) -> DecodeConfig:
    """CAP-Decoding in fixed blocks: the paper's selection alone."""
    return _compose(FixedBlocks, ConflictFree, locals())


def depcap(
    *,
    l_min: int = DepGABlocks.l_min,
    l_max: int = DepGABlocks.l_max,
    top_k_cache: int = DepGABlocks.top_k_cache,
    lambda_u: Number = DepGABlocks.lambda_u,
    certainty_floor: Number = DepGABlocks.certainty_floor,
    tau_low: Number = ConflictFree.tau_low,
    tau_high: Number = ConflictFree.tau_high,
    gamma: Number = ConflictFree.gamma,
    **common: Unpack[Common],
) -> DecodeConfig:
    """DepCap: DepGA-Block with CAP-Decoding."""
    return _compose(DepGABlocks, ConflictFree, locals())


def spread(
    *,
    open_length: int = SlidingWindow.open_length,
    longest: int | None = 64,
    doubt: Number = Spread.doubt,
    nearest: int = Spread.nearest,
    least: Number = Spread.least,
    entropy: Number = Spread.entropy,
    known: int = Spread.known,
    rival: Number = Spread.rival,
    calm: int = Spread.calm,
    drift: Number = Spread.drift,
    look: Number = Spread.look,
    look_back: Number = Spread.look_back,
    reach: Number = Spread.reach,
    gamma: Number = Spread.gamma,
    layers: int = Spread.layers,
    **common: Unpack[Common],
) -> DecodeConfig:
    """Ours: what is sure together, and what is not where it stands apart, over a window that slides."""
    return _compose(SlidingWindow, Spread, locals())


def _compose(partition: type[Any], select: type[Any], given: Mapping[str, Any]) -> DecodeConfig:
    """The decoder of two policies whose settings are among the arguments `given` to a recipe."""
    for name in given["common"]:
        if name not in Common.__annotations__:
            raise TypeError(
                f"this recipe has no setting {name!r}; common are: {', '.join(Common.__annotations__)}"
            )
    settings = {**given, **given["common"]}

    def build(part: type[Any]) -> Any:
        names = [declared.name for declared in settings_of(part)]
        return part(**{name: settings[name] for name in names if name in settings})

    common = {name: settings[name] for name in ("cache", "gen_length", "stop_at_eos") if name in settings}
    settings.setdefault("temperature", 0.0)
    sampling = build(Sampling)
    # Python's 0 takes the most likely token without drawing noise; a traced temperature always draws.
    greedy = isinstance(sampling.temperature, float) and sampling.temperature == 0
    return DecodeConfig(
        partition=build(partition), select=build(select), sampling=None if greedy else sampling, **common
    )


_RECIPES: Mapping[str, Callable[..., DecodeConfig]] = {
    function.__name__: function
    for function in (vanilla, confidence, factor, adablock, depga, cap, depcap, spread)
}
_CACHES: Mapping[str, Cache] = {
    "none": NoCache(),
    "prefix": PrefixCache(),
    "dual": DualCache(),
    "prefix-margin": PrefixCache(margin=24),
    "dual-margin": DualCache(margin=24, margin_after=24),
    "sparse": SparseCache(),
}

RECIPES = tuple(_RECIPES)
"""The names that `recipe` knows: the rows of the paper's tables, and `spread`, our own."""

CACHES = tuple(_CACHES)
"""The names that its setting `cache` knows; those with a margin also recompute what is beside the block, and
`sparse` keeps a half of it."""

SETTINGS: Mapping[str, Setting] = {
    declared.name: declared
    for part in (
        *(FixedBlocks, AdaBlocks, DepGABlocks, SlidingWindow),
        *(ConfidenceThreshold, FactorThreshold, ConflictFree, Spread),
        *(Sampling, DecodeConfig),
    )
    for declared in settings_of(part)
}
"""Every setting of every recipe, but for the cache, by its name."""


def recipe_settings(name: str) -> tuple[str, ...]:
    """The names of the settings that `recipe(name, ...)` takes."""
    return (*_find(name)[1], *Common.__annotations__)


def recipe(name: str, **settings: Any) -> DecodeConfig:
    """A decoder by name, with any of its settings changed.

    Args:
      name: one of `RECIPES`, or "PARTITION+SELECT" with one of `PARTITIONS` and one of `SELECTS`.
      **settings: see `recipe_settings(name)`. `cache` is a policy, or one of `CACHES`; `temperature`
        0 (the default) takes the most likely token. `adablock` needs `delimiter_ids`, the ids of "\\n".

    Raises:
      ValueError: naming the setting or value that is wrong, and what is allowed.
    """
    make, known = _find(name)[0], recipe_settings(name)
    for given, value in settings.items():
        if given not in known:
            raise ValueError(f"recipe {name!r} has no setting {given!r}; it has: {', '.join(known)}")
        if value is None and given not in ("top_p", "top_k"):
            raise ValueError(f"{given} must not be None; leave it out for its default")
    if "delimiter_ids" in known and "delimiter_ids" not in settings:
        raise ValueError(
            f'recipe {name!r} needs delimiter_ids: the token ids of the delimiter, usually "\\n"'
        )
    cache = settings.get("cache", "none")
    if isinstance(cache, str):
        if cache not in _CACHES:
            raise ValueError(f"cache must be one of {', '.join(map(repr, _CACHES))}, got {cache!r}")
        settings["cache"] = _CACHES[cache]
    return make(**settings)


def _find(name: str) -> tuple[Callable[..., DecodeConfig], tuple[str, ...]]:
    """The function that makes the decoder, and the settings that only some recipes have."""
    if isinstance(name, str) and "+" in name:
        partition, _, select = name.partition("+")
        return _cross(_member("partition", partition, PARTITIONS), _member("selection", select, SELECTS))
    make = _member("recipe", name, _RECIPES)
    return make, tuple(n for n in inspect.signature(make).parameters if n != "common")


def _cross(partition: Family, select: Family) -> tuple[Callable[..., DecodeConfig], tuple[str, ...]]:
    """A recipe of two policies: its function and its settings."""
    fixed = {**partition.settings, **select.settings}

    def make(**settings: Any) -> DecodeConfig:
        return _compose(partition.policy, select.policy, {**fixed, **settings, "common": {}})

    names = [declared.name for part in (partition, select) for declared in settings_of(part.policy)]
    return make, tuple(dict.fromkeys(name for name in names if name not in fixed))


def _member(kind: str, name: Any, known: Mapping[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return known[name]
