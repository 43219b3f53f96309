"""DepCap and its baselines: fast decoding of diffusion language models in JAX.

What is heavy (loading, text, plots, evaluation) is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from depcap_jax.decoding import numerics
from depcap_jax.decoding.caching import Cache, DualCache, NoCache, Pass, PrefixCache
from depcap_jax.decoding.generate import generate, generate_canvas, prepare, start
from depcap_jax.decoding.loop import Turn, decode, decode_step, finish, init_state, is_live, swap_rows
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks, Lengths, Partition
from depcap_jax.decoding.policy import policy, setting
from depcap_jax.decoding.prediction import Prediction, Reads, Sampling
from depcap_jax.decoding.recipes import (
    RECIPES,
    DecodeConfig,
    adablock,
    cap,
    confidence,
    depcap,
    depga,
    factor,
    recipe,
    recipe_settings,
    vanilla,
)
from depcap_jax.decoding.recording import Trace
from depcap_jax.decoding.select import ConfidenceThreshold, ConflictFree, FactorThreshold, Select, TopOne
from depcap_jax.decoding.state import DecodeError, DecodeResult, DecodeState, Status, raise_for_status
from depcap_jax.decoding.stream import Snapshot, stream
from depcap_jax.models.config import ModelConfig
from depcap_jax.models.transformer import Transformer

if TYPE_CHECKING:
    from depcap_jax import evaluation, tiny
    from depcap_jax.checkpoints.errors import CheckpointError
    from depcap_jax.checkpoints.loading import load, save
    from depcap_jax.inspect import memory, plots, viewer
    from depcap_jax.inspect.replay import Replay, replay
    from depcap_jax.text.generator import Partial, RepliesError, Reply, TextGenerator
    from depcap_jax.text.infill import Infilled

_LATER = {
    "checkpoints.errors": ("CheckpointError",),
    "checkpoints.loading": ("load", "save"),
    "inspect.replay": ("Replay", "replay"),
    "text.generator": ("Partial", "RepliesError", "Reply", "TextGenerator"),
    "text.infill": ("Infilled",),
}
_LATER_MODULES = ("evaluation", "tiny", "inspect.memory", "inspect.plots", "inspect.viewer")

__all__ = [
    "RECIPES",
    "AdaBlocks",
    "Cache",
    "CheckpointError",
    "ConfidenceThreshold",
    "ConflictFree",
    "DecodeConfig",
    "DecodeError",
    "DecodeResult",
    "DecodeState",
    "DepGABlocks",
    "DiffusionLM",
    "DualCache",
    "FactorThreshold",
    "FixedBlocks",
    "Infilled",
    "Lengths",
    "ModelConfig",
    "NoCache",
    "Partial",
    "Partition",
    "Pass",
    "Prediction",
    "PrefixCache",
    "Reads",
    "Replay",
    "RepliesError",
    "Reply",
    "Sampling",
    "Select",
    "Snapshot",
    "Status",
    "TextGenerator",
    "TopOne",
    "Trace",
    "Transformer",
    "Turn",
    "adablock",
    "cap",
    "confidence",
    "decode",
    "decode_step",
    "depcap",
    "depga",
    "evaluation",
    "factor",
    "finish",
    "generate",
    "generate_canvas",
    "init_state",
    "is_live",
    "load",
    "memory",
    "numerics",
    "plots",
    "policy",
    "prepare",
    "raise_for_status",
    "recipe",
    "recipe_settings",
    "replay",
    "save",
    "setting",
    "start",
    "stream",
    "swap_rows",
    "tiny",
    "vanilla",
    "viewer",
]

_HOMES = {name: room for room, names in _LATER.items() for name in names}
_HOMES |= {room.rpartition(".")[2]: room for room in _LATER_MODULES}


def __getattr__(name: str) -> Any:
    """Imports what was not needed until now."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    value = module if _HOMES[name] in _LATER_MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
