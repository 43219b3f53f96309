"""One bidirectional transformer, configured as LLaDA, as Dream or as another of its layouts."""

from depcap_jax.models.config import ConfigError, ModelConfig
from depcap_jax.models.key_values import KeyValues
from depcap_jax.models.transformer import KVCache, Transformer

__all__ = ["ConfigError", "KVCache", "KeyValues", "ModelConfig", "Transformer"]
