"""DepCap and its baselines: fast decoding of diffusion language models in JAX.

These are the public names. Each is imported when it is first used, so entering costs nothing and nobody
waits for what they do not need.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from depcap_jax import evaluation as evaluation, tiny as tiny
    from depcap_jax.checkpoints.errors import CheckpointError as CheckpointError
    from depcap_jax.checkpoints.loading import load as load, save as save
    from depcap_jax.decoding.caching import (
        Cache as Cache,
        DualCache as DualCache,
        NoCache as NoCache,
        Pass as Pass,
        PrefixCache as PrefixCache,
    )
    from depcap_jax.decoding.compute import numerics as numerics
    from depcap_jax.decoding.compute.attention import Attention as Attention
    from depcap_jax.decoding.compute.prediction import (
        Prediction as Prediction,
        Reads as Reads,
        Sampling as Sampling,
    )
    from depcap_jax.decoding.field.attending import CLAD as CLAD, DAPD as DAPD, DAWN as DAWN
    from depcap_jax.decoding.field.families import (
        PARTITIONS as PARTITIONS,
        SELECTS as SELECTS,
        Family as Family,
    )
    from depcap_jax.decoding.field.one_pass import (
        EntropyBound as EntropyBound,
        FrechetProfile as FrechetProfile,
        Hierarchy as Hierarchy,
        LocalLeap as LocalLeap,
    )
    from depcap_jax.decoding.field.orders import (
        ByConfidence as ByConfidence,
        ByEntropy as ByEntropy,
        ByMargin as ByMargin,
        Order as Order,
    )
    from depcap_jax.decoding.field.remembering import (
        CreditThreshold as CreditThreshold,
        DreamSchedule as DreamSchedule,
        FallingThreshold as FallingThreshold,
        Schedule as Schedule,
        StableAndConfident as StableAndConfident,
    )
    from depcap_jax.decoding.field.revoking import Saber as Saber
    from depcap_jax.decoding.field.sparse import SparseCache as SparseCache
    from depcap_jax.decoding.field.spread import Spread as Spread
    from depcap_jax.decoding.field.windows import (
        AttentionBlocks as AttentionBlocks,
        EntropyBlocks as EntropyBlocks,
        SlidingWindow as SlidingWindow,
    )
    from depcap_jax.decoding.generate import (
        generate as generate,
        generate_canvas as generate_canvas,
        prepare as prepare,
        start as start,
    )
    from depcap_jax.decoding.loop import (
        decode as decode,
        decode_step as decode_step,
        finish as finish,
        init_state as init_state,
        is_live as is_live,
        swap_rows as swap_rows,
    )
    from depcap_jax.decoding.model import (
        AttentiveLM as AttentiveLM,
        DiffusionLM as DiffusionLM,
        SparseLM as SparseLM,
    )
    from depcap_jax.decoding.partition import (
        AdaBlocks as AdaBlocks,
        DepGABlocks as DepGABlocks,
        FixedBlocks as FixedBlocks,
        Lengths as Lengths,
        Partition as Partition,
    )
    from depcap_jax.decoding.policy import policy as policy, setting as setting
    from depcap_jax.decoding.recipes import (
        RECIPES as RECIPES,
        DecodeConfig as DecodeConfig,
        adablock as adablock,
        cap as cap,
        confidence as confidence,
        depcap as depcap,
        depga as depga,
        factor as factor,
        recipe as recipe,
        recipe_settings as recipe_settings,
        spread as spread,
        vanilla as vanilla,
    )
    from depcap_jax.decoding.recording import Trace as Trace
    from depcap_jax.decoding.select import (
        Change as Change,
        ConfidenceThreshold as ConfidenceThreshold,
        ConflictFree as ConflictFree,
        FactorThreshold as FactorThreshold,
        Select as Select,
        TopOne as TopOne,
    )
    from depcap_jax.decoding.state import (
        DecodeError as DecodeError,
        DecodeResult as DecodeResult,
        DecodeState as DecodeState,
        Status as Status,
        Turn as Turn,
        raise_for_status as raise_for_status,
    )
    from depcap_jax.decoding.stream import Snapshot as Snapshot, stream as stream
    from depcap_jax.inspect import memory as memory, plots as plots, viewer as viewer
    from depcap_jax.inspect.replay import Replay as Replay, replay as replay
    from depcap_jax.models.config import ModelConfig as ModelConfig
    from depcap_jax.models.transformer import (
        Transformer as Transformer,
        stack_layers as stack_layers,
        unstack_layers as unstack_layers,
    )
    from depcap_jax.text.generator import (
        Partial as Partial,
        RepliesError as RepliesError,
        Reply as Reply,
        TextGenerator as TextGenerator,
    )
    from depcap_jax.text.infill import Infilling as Infilling

_HOME_OF = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("depcap_jax")
    for alias in node.names
}
"""Where each public name lives, read off the imports above: a module of that room, or something in it."""

__all__ = sorted(_HOME_OF)  # type: ignore[reportUnsupportedDunderAll]  # the imports say the same


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME_OF[name]
    value = getattr(importlib.import_module(home), name, None) if home != __name__ else None
    if value is None:
        value = importlib.import_module(f"{home}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
