"""How to decode: a partition, a selection and a cache; and the paper's rows as named recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from depcap_jax.decoding.caching import Cache, DualCache, NoCache, PrefixCache, Sizes
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks, Partition
from depcap_jax.decoding.policy import check_count, policy, static
from depcap_jax.decoding.prediction import Sampling
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
    gen_length: int = static(default=256)
    """Positions of the answer."""
    stop_at_eos: bool = static(default=True)
    """End a row once its answer has reached an end-of-text token with nothing open before it."""

    def __post_init__(self) -> None:
        for name, example in (
            ("partition", "DepGABlocks()"),
            ("select", "TopOne()"),
            ("cache", "DualCache()"),
        ):
            value = getattr(self, name)
            if value is None or isinstance(value, (str, type)):
                raise ValueError(f"{name} must be a policy, such as {example}, got {value!r}")
        check_count("gen_length", self.gen_length, 1)
        if not isinstance(self.stop_at_eos, bool):
            raise ValueError(f"stop_at_eos must be True or False, got {self.stop_at_eos!r}")

    @property
    def sizes(self) -> Sizes:
        """The lengths that shapes depend on."""
        shortest, longest = self.partition.lengths(self.gen_length)
        window = max(self.partition.window(self.gen_length), longest)
        return Sizes(self.gen_length, shortest, longest, window)


_RECIPES: Mapping[str, tuple[type[Partition], type[Select]]] = {
    "vanilla": (FixedBlocks, TopOne),
    "confidence": (FixedBlocks, ConfidenceThreshold),
    "factor": (FixedBlocks, FactorThreshold),
    "adablock": (AdaBlocks, ConfidenceThreshold),
    "depga": (DepGABlocks, ConfidenceThreshold),
    "cap": (FixedBlocks, ConflictFree),
    "depcap": (DepGABlocks, ConflictFree),
}
"""The rows of the paper's tables: how blocks are cut, and what is committed together."""

_CACHES: Mapping[str, Callable[[], Cache]] = {"none": NoCache, "prefix": PrefixCache, "dual": DualCache}

_COMMON = ("cache", "gen_length", "stop_at_eos", "temperature", "top_p", "top_k")

RECIPES = tuple(_RECIPES)
"""The names that `recipe` knows."""

CACHES = tuple(_CACHES)
"""The names that its setting `cache` knows."""


def recipe_settings(name: str) -> tuple[str, ...]:
    """The settings that `recipe(name, ...)` takes."""
    partition, select = _parts(name)
    return (*_fields(partition), *_fields(select), *_COMMON)


def recipe(name: str, **settings: Any) -> DecodeConfig:
    """A decoder of the paper by name, with any of its settings changed.

    Args:
      name: one of `RECIPES`.
      **settings: see `recipe_settings(name)`. `cache` is "none", "prefix" or "dual"; `temperature` 0 (the
        default) takes the most likely token. `adablock` needs `delimiter_ids`, the ids of "\\n".

    Raises:
      ValueError: naming the setting or value that is wrong, and what is allowed.
    """
    partition, select = _parts(name)
    known = recipe_settings(name)
    for setting, value in settings.items():
        if setting not in known:
            raise ValueError(f"recipe {name!r} has no setting {setting!r}; it has: {', '.join(known)}")
        if value is None and setting not in ("top_p", "top_k"):
            raise ValueError(f"{setting} must not be None; leave it out for its default")
    if "delimiter_ids" in known and "delimiter_ids" not in settings:
        raise ValueError(
            f'recipe {name!r} needs delimiter_ids: the token ids of the delimiter, usually "\\n"'
        )
    cache = settings.get("cache", "none")
    if not isinstance(cache, str) or cache not in _CACHES:
        raise ValueError(f"cache must be one of {', '.join(map(repr, _CACHES))}, got {cache!r}")

    def build(part: type[Any]) -> Any:
        return part(**{field: settings[field] for field in _fields(part) if field in settings})

    common = {key: settings[key] for key in ("gen_length", "stop_at_eos") if key in settings}
    return DecodeConfig(build(partition), build(select), _CACHES[cache](), _sampling(settings), **common)


def _parts(name: str) -> tuple[type[Partition], type[Select]]:
    if not isinstance(name, str) or name not in _RECIPES:
        raise ValueError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    return _RECIPES[name]


def _fields(part: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(part))


def _sampling(settings: Mapping[str, Any]) -> Sampling | None:
    sampling = Sampling(settings.get("temperature", 0.0), settings.get("top_p"), settings.get("top_k"))
    # Python's 0 takes the most likely token without drawing noise; a traced temperature always draws.
    greedy = isinstance(sampling.temperature, (int, float)) and sampling.temperature == 0
    return None if greedy else sampling
