"""The paper's tables as lists of decoders: Table 1, its cache figure, and the appendix's sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from depcap_jax.decoding.recipes import CACHES, recipe_settings
from depcap_jax.evaluation.decoder import Decoder

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


def table_decoders(caches: Sequence[str] = ("none",), *, gen_length: int) -> list[Decoder]:
    """The lines of Table 1, once per cache.

    Args:
      caches: of `CACHES`; "none" comes first, since speed-ups are against it.
      gen_length: positions of an answer, the same in all lines.
    """
    for cache in caches:
        if cache not in CACHES:
            raise ValueError(f"cache must be one of {', '.join(map(repr, CACHES))}, got {cache!r}")
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
        for cache in sorted(set(caches), key=CACHES.index)
        for line in lines
    ]


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
