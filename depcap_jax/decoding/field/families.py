"""Every partition and every selection by name, each with the setting that trades answers for speed.

`recipe("PARTITION+SELECT", ...)` makes a decoder of two of these names, and `depcap table --all` crosses all
of them. A new policy needs a line here and nothing else.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, NamedTuple

from depcap_jax.decoding.field.attending import CLAD, DAPD, DAWN
from depcap_jax.decoding.field.one_pass import EntropyBound, FrechetProfile, Hierarchy, LocalLeap
from depcap_jax.decoding.field.remembering import (
    CreditThreshold,
    DreamSchedule,
    FallingThreshold,
    Schedule,
    StableAndConfident,
)
from depcap_jax.decoding.field.revoking import Saber
from depcap_jax.decoding.field.spread import Spread
from depcap_jax.decoding.field.windows import AttentionBlocks, EntropyBlocks, SlidingWindow
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks
from depcap_jax.decoding.select import ConfidenceThreshold, ConflictFree, FactorThreshold, TopOne


class Family(NamedTuple):
    """The decoders that differ in one setting of a policy."""

    policy: type[Any]
    swept: str = ""
    """The setting that they differ in, if they do."""
    values: tuple[float, ...] = ()
    """Its values, from the slow and careful one to the fast one."""
    settings: Mapping[str, Any] = types.MappingProxyType({})
    """What the name says of the policy's other settings, which otherwise have their defaults."""


PARTITIONS: Mapping[str, Family] = {
    **{f"fixed-{length}": Family(FixedBlocks, settings={"block_length": length}) for length in (16, 32, 64)},
    "adablock": Family(AdaBlocks),
    "depga": Family(DepGABlocks),
    "sliding": Family(SlidingWindow),
    "entropy": Family(EntropyBlocks),
    "attention": Family(AttentionBlocks),
}
"""How far a block may reach."""

SELECTS: Mapping[str, Family] = {
    "top-one": Family(TopOne),
    "confidence": Family(ConfidenceThreshold, "threshold", (0.95, 0.9, 0.75)),
    "factor": Family(FactorThreshold, "factor", (0.5, 1.0, 2.0)),
    "cap": Family(ConflictFree, "tau_low", (0.9, 0.8, 0.65)),
    "local-leap": Family(LocalLeap, "relaxed_threshold", (0.85, 0.75, 0.6)),
    "hierarchy": Family(Hierarchy, "threshold", (0.9, 0.76, 0.6)),
    "frechet": Family(FrechetProfile, "delta", (0.5, 0.25, 0.1)),
    "entropy-bound": Family(EntropyBound, "gamma", (0.001, 0.01, 0.1)),
    "stable": Family(StableAndConfident, "conf_threshold", (0.9, 0.6, 0.4)),
    "credit": Family(CreditThreshold, "threshold", (0.95, 0.9, 0.75)),
    "falling": Family(FallingThreshold, "threshold", (0.95, 0.9, 0.75)),
    "clad": Family(CLAD, "threshold", (0.9, 0.75, 0.6)),
    "dapd": Family(DAPD, "tau_max", (0.02, 0.05, 0.1)),
    "dawn": Family(DAWN, "tau_low", (0.85, 0.75, 0.6)),
    "saber": Family(Saber),
    "spread": Family(Spread, "least", (1.0, 0.5, 0.2)),
    "schedule": Family(Schedule, "steps", (128, 64, 32)),
    "dream-schedule": Family(DreamSchedule, "steps", (128, 64, 32)),
}
"""What may be committed together."""
