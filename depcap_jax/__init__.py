"""DepCap and its baselines: fast decoding of diffusion language models in JAX."""

from depcap_jax.caching import DualCache, NoCache, PrefixCache
from depcap_jax.checkpoint import load, save
from depcap_jax.config import RECIPES, DecodeConfig, recipe, recipe_settings
from depcap_jax.decode import decode, decode_step, finish, init_state, is_live, swap_rows
from depcap_jax.errors import CheckpointError
from depcap_jax.generate import generate, prepare, start
from depcap_jax.infill import Infilled
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.partition import AdaBlocks, DepGABlocks, FixedBlocks
from depcap_jax.sampling import Sampling
from depcap_jax.select import ConfidenceThreshold, ConflictFree, FactorThreshold, TopOne
from depcap_jax.stream import Snapshot, stream
from depcap_jax.text import Partial, RepliesError, Reply, TextGenerator
from depcap_jax.types import DecodeError, DecodeResult, DecodeState, Status, Trace, raise_for_status

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
