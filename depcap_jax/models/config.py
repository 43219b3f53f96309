"""The sizes and ids of a model, in one vocabulary for all families."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

from depcap_jax.models.quantization import BITS, Bits

Family = Literal["llada", "dream", "illada", "qwen2", "qwen3"]

_LARGEST_SIZE = 2**31 - 1  # of an int32, which counts positions and ids
_MOST_LAYERS = 256  # each is traced by itself


class ConfigError(ValueError):
    """A model config that is incomplete, contradicts itself or asks for what is not implemented."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes and ids of one bidirectional transformer; LLaDA, Dream and the others are such."""

    family: Family
    """Whose layout the checkpoint has."""
    vocab_size: int
    """Ids below this are tokens."""
    embedding_size: int
    """Rows of the embedding and columns of the head; those from `vocab_size` on are padding."""
    width: int
    """Size of the residual stream."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key/value heads; each serves `num_heads / num_kv_heads` query heads."""
    head_dim: int
    ff_width: int
    """Inner size of the SwiGLU feed-forward."""
    rope_theta: float
    norm_eps: float
    qkv_bias: bool
    tie_embeddings: bool
    max_length: int
    """The longest canvas the model was made for: prompt and answer together."""
    mask_token_id: int
    pad_token_id: int
    eos_token_ids: tuple[int, ...]
    """Any of these ends an answer."""
    predicts_next: bool
    """True if the output at position i speaks of position i + 1 (Dream), False if of i itself."""
    qk_norm: bool = False
    """Whether queries and keys are normed, head by head, before they are rotated (Qwen3)."""
    quantize: Bits | None = None
    """How embedding, head and the layers' matrices are kept: in few bits, or None for the model's dtype."""

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size embedding_size width num_layers num_heads num_kv_heads head_dim ff_width max_length"
        )
        for name in sizes.split():
            value = getattr(self, name)
            most = _MOST_LAYERS if name == "num_layers" else _LARGEST_SIZE
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise ConfigError(f"{name} must be an integer in [1, {most}], got {value!r:.40}")
        for name, most in (("rope_theta", 1e12), ("norm_eps", 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
                raise ConfigError(f"{name} must be a number above 0, at most {most:g}, got {value!r:.40}")
        for name in ("qkv_bias", "tie_embeddings", "predicts_next", "qk_norm"):
            if not isinstance(value := getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {value!r}")
        if self.family not in get_args(Family):
            raise ConfigError(f"family must be one of {', '.join(get_args(Family))}, got {self.family!r}")
        if self.quantize not in (None, *BITS):
            raise ConfigError(f"quantize must be one of {', '.join(BITS)} or None, got {self.quantize!r}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim must be even (RoPE rotates halves), got {self.head_dim}")
        if self.embedding_size < self.vocab_size:
            raise ConfigError(
                f"embedding_size must be at least vocab_size, got {self.embedding_size} and {self.vocab_size}"
            )
        if not self.eos_token_ids:
            raise ConfigError("eos_token_ids must have at least one id, got none")
        ids = {"mask_token_id": (self.mask_token_id,), "pad_token_id": (self.pad_token_id,)}
        for name, values in {**ids, "eos_token_ids": self.eos_token_ids}.items():
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self.vocab_size:
                    raise ConfigError(f"{name} must be an id in [0, {self.vocab_size}), got {value!r}")

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`; raises `ConfigError` on missing or unknown names."""
        declared = dataclasses.fields(cls)
        known = {field.name for field in declared}
        needed = {field.name for field in declared if field.default is dataclasses.MISSING}
        if unknown := sorted(set(fields) - known):
            raise ConfigError(f"unknown model config field {unknown[0]!r}; known: {', '.join(sorted(known))}")
        if missing := sorted(needed - set(fields)):
            raise ConfigError(f"model config field {missing[0]!r} is missing")
        if not isinstance(ends := fields["eos_token_ids"], (list, tuple)):
            raise ConfigError(f"eos_token_ids must be a list of ids, got {ends!r}")
        return cls(**{**fields, "eos_token_ids": tuple(ends)})

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping of every field."""
        return {**dataclasses.asdict(self), "eos_token_ids": list(self.eos_token_ids)}
