"""DepCap and its baselines: fast decoding of diffusion language models in JAX."""

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.loading import load, save
from depcap_jax.decoding.caching import DualCache, NoCache, PrefixCache
from depcap_jax.decoding.generate import generate, prepare, start
from depcap_jax.decoding.loop import decode, decode_step, finish, init_state, is_live, swap_rows
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks
from depcap_jax.decoding.prediction import Sampling
from depcap_jax.decoding.recipes import RECIPES, DecodeConfig, recipe, recipe_settings
from depcap_jax.decoding.select import ConfidenceThreshold, ConflictFree, FactorThreshold, TopOne
from depcap_jax.decoding.state import DecodeError, DecodeResult, DecodeState, Status, Trace, raise_for_status
from depcap_jax.decoding.stream import Snapshot, stream
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.text.generator import Partial, RepliesError, Reply, TextGenerator
from depcap_jax.text.infill import Infilled

__all__ = [
    "RECIPES",
    "AdaBlocks",
    "CheckpointError",
    "ConfidenceThreshold",
    "ConflictFree",
    "DecodeConfig",
    "DecodeError",
    "DecodeResult",
    "DecodeState",
    "DepGABlocks",
    "DualCache",
    "FactorThreshold",
    "FixedBlocks",
    "Infilled",
    "ModelConfig",
    "NoCache",
    "Partial",
    "PrefixCache",
    "RepliesError",
    "Reply",
    "Sampling",
    "Snapshot",
    "Status",
    "TextGenerator",
    "TopOne",
    "Trace",
    "Transformer",
    "decode",
    "decode_step",
    "finish",
    "generate",
    "init_state",
    "is_live",
    "load",
    "prepare",
    "raise_for_status",
    "recipe",
    "recipe_settings",
    "save",
    "start",
    "stream",
    "swap_rows",
]
