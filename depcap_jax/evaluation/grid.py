"""Tables as lists of decoders: the paper's Table 1, cache figure and sweeps, and all policies crossed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from depcap_jax.decoding.field.families import PARTITIONS, SELECTS
from depcap_jax.decoding.recipes import CACHES, recipe_settings
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.summary import VANILLA

BLOCK_LENGTHS = (16, 32, 64)
"""Of the fixed blocks in Table 1."""

APPENDIX: Mapping[str, tuple[float, ...]] = {
    "gen_length": (128, 256, 512, 1024),
    "lambda_u": (0.6, 0.8, 1.0, 1.2, 1.4, 1.6),
    "l_max": (16, 32, 64, 128, 256),
    "tau_low": (0.65, 0.7, 0.75, 0.8, 0.85),
    "gamma": (-8.0, -12.0, -16.0, -20.0, -24.0),
}
"""What the paper's appendix varies, one setting at a time."""

USUAL = ("fixed-32", "depga", "confidence", "cap")
"""The partitions and selections that all others are crossed with."""


def table_decoders(caches: Sequence[str] = ("none",), *, gen_length: int) -> list[Decoder]:
    """The lines of Table 1, once per cache.

    Args:
      caches: of `CACHES`; "none" comes first, since speed-ups are against it.
      gen_length: positions of an answer, the same in all lines.
    """
    lines = [
        Decoder("vanilla"),
        *(Decoder("confidence", {"block_length": length}) for length in BLOCK_LENGTHS),
        Decoder("adablock"),
        Decoder("depga"),
        Decoder("cap", {"block_length": 32}),
        Decoder("depcap"),
    ]
    return [
        line.change(cache=cache, gen_length=gen_length)
        for cache in _chosen("cache", caches, CACHES)
        for line in lines
    ]


def cross_decoders(
    partitions: Sequence[str] | None = None,
    selects: Sequence[str] | None = None,
    caches: Sequence[str] = ("none",),
    *,
    gen_length: int,
    full: bool = False,
) -> list[Decoder]:
    """Partitions crossed with selections and caches, at each value that a selection's family has.

    Each partition goes with the usual selections, each selection with the usual partitions (`USUAL`). All go
    with all if `full`, or if both are named.

    Args:
      partitions: of `PARTITIONS`; all by default.
      selects: of `SELECTS`; all by default.
      caches: of `CACHES`.
      gen_length: positions of an answer, the same in all.
      full: cross all with all.

    Raises:
      ValueError: naming what has no such name.
    """
    full = full or not (partitions is None or selects is None)
    crossed = [
        Decoder(f"{partition}+{select}", {**point, "cache": cache, "gen_length": gen_length})
        for cache in _chosen("cache", caches, CACHES)
        for partition in _chosen("partition", partitions, tuple(PARTITIONS))
        for select in _chosen("selection", selects, tuple(SELECTS))
        if full or not {partition, select}.isdisjoint(USUAL)
        for point in [{SELECTS[select].swept: value} for value in SELECTS[select].values] or [{}]
    ]
    # What speed-ups are against comes first.
    return sorted(crossed, key=lambda decoder: decoder.recipe not in VANILLA)


def _chosen(kind: str, names: Sequence[str] | None, known: tuple[str, ...]) -> list[str]:
    """Each name once, in the order of those that are known."""
    for name in names or ():
        if name not in known:
            raise ValueError(f"{kind} must be one of {', '.join(map(repr, known))}, got {name!r}")
    return [name for name in known if names is None or name in names]


def sweep_decoders(base: Decoder, varied: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any, Decoder]]:
    """One setting varied at a time, all others as in `base`: (its name, its value, the decoder)."""
    return [
        (name, value, base.change(f"{base.recipe}, {name} {value}", **{name: value}))
        for name, values in varied.items()
        for value in values
    ]


def appendix(recipe: str, context: int) -> dict[str, list[Any]]:
    """What the appendix varies of the settings that a recipe has, answers of at most half the context."""
    return {
        name: [value for value in values if name != "gen_length" or value <= context // 2]
        for name, values in APPENDIX.items()
        if name in recipe_settings(recipe)
    }
