"""What a checkpoint's `config.json` says, in one vocabulary for both families."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Family = Literal["llada", "dream"]

# Ids that end a chat turn beside `eos_token_id`. The published `config.json` files do not list them,
# so they are recognised by the published vocabulary's size: `<|eot_id|>` and `<|im_end|>`.
_TURN_END_IDS: dict[tuple[str, int], tuple[int, ...]] = {
    ("llada", 126464): (126348,),
    ("dream", 152064): (151645,),
}


class ConfigError(ValueError):
    """A `config.json` that is incomplete, contradicts itself or asks for what is not implemented."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes and ids of one bidirectional transformer; LLaDA and Dream are two of these."""

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

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size embedding_size width num_layers num_heads num_kv_heads head_dim ff_width max_length"
        )
        for name in sizes.split():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("rope_theta", "norm_eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise ConfigError(f"{name} must be a positive number, got {value!r}")
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
        ids = {"mask_token_id": (self.mask_token_id,), "pad_token_id": (self.pad_token_id,)}
        for name, values in {**ids, "eos_token_ids": self.eos_token_ids}.items():
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self.vocab_size:
                    raise ConfigError(f"{name} must be an id in [0, {self.vocab_size}), got {value!r}")

    @classmethod
    def from_hf(cls, source: str | os.PathLike[str] | Mapping[str, Any]) -> ModelConfig:
        """Reads a published `config.json`, given as a path or already parsed.

        Raises:
          ConfigError: naming the field, its value and what is implemented, if a field is missing,
            out of range, or asks for an architecture that this library does not have.
        """
        fields = _Fields(source if isinstance(source, Mapping) else _read_json(Path(source)))
        family = _family(fields)
        return _READERS[family](fields)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`; raises `ConfigError` on missing or unknown names."""
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ConfigError(f"unknown model config field {unknown[0]!r}; known: {', '.join(sorted(known))}")
        if missing := sorted(known - set(fields)):
            raise ConfigError(f"model config field {missing[0]!r} is missing")
        return cls(**{**fields, "eos_token_ids": tuple(fields["eos_token_ids"])})

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping of every field."""
        return {**dataclasses.asdict(self), "eos_token_ids": list(self.eos_token_ids)}

    def to_hf(self) -> dict[str, Any]:
        """The fields of a published `config.json` that `from_hf` reads back to this config."""
        return _WRITERS[self.family](self)


class _Fields:
    """A parsed `config.json` whose readers name the field in every complaint."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values

    def get(self, name: str, default: Any) -> Any:
        """The field's value, or `default` where it is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            raise ConfigError(f"config.json lacks {name!r}")
        return value

    def need_int(self, name: str) -> int:
        return _whole(name, self.need(name))

    def get_int(self, name: str, default: int) -> int:
        return _whole(name, self.get(name, default))

    def only(self, name: str, *allowed: Any, default: Any) -> None:
        """Refuses any value but those that the transformer implements."""
        value = self.get(name, default)
        if value not in allowed:
            choices = " or ".join(repr(choice) for choice in allowed)
            raise ConfigError(f"config.json has {name} = {value!r}; implemented: {choices}")


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"config.json has {name} = {value!r}; a whole number is expected")
    return value


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no such file: {path}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # covers broken JSON and broken UTF-8
        raise ConfigError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a JSON {type(values).__name__}; an object is expected")
    return values


def _family(fields: _Fields) -> Family:
    model_type = str(fields.need("model_type")).lower()
    if model_type not in _READERS:
        raise ConfigError(
            f"config.json has model_type = {fields.need('model_type')!r}; implemented: 'llada' or 'Dream'"
        )
    return model_type  # type: ignore[return-value]  # just checked against the table's keys


def _eos_ids(fields: _Fields, family: Family, embedding_size: int) -> tuple[int, ...]:
    declared = fields.need("eos_token_id")
    ids = declared if isinstance(declared, list) else [declared]
    turn_ends = _TURN_END_IDS.get((family, embedding_size), ())
    return tuple(dict.fromkeys([_whole("eos_token_id", value) for value in ids] + list(turn_ends)))


def _from_llada(fields: _Fields) -> ModelConfig:
    fields.only("alibi", False, default=False)
    fields.only("rope", True, default=True)
    fields.only("rope_full_precision", True, default=True)
    fields.only("rope_scaling", None, default=None)
    fields.only("block_type", "llama", default="llama")
    fields.only("block_group_size", 1, default=1)
    fields.only("activation_type", "silu", "swiglu", default="silu")
    fields.only("layer_norm_type", "rms", default="rms")
    fields.only("layer_norm_with_affine", True, default=True)
    fields.only("attention_layer_norm", False, default=False)
    fields.only("bias_for_layer_norm", False, default=False)
    fields.only("include_bias", False, default=False)
    fields.only("input_emb_norm", False, default=False)
    fields.only("scale_logits", False, default=False)
    fields.only("clip_qkv", None, default=None)
    width = fields.need_int("d_model")
    num_heads = fields.need_int("n_heads")
    if num_heads < 1 or width % num_heads:
        raise ConfigError(f"config.json has d_model = {width}, which n_heads = {num_heads} does not divide")
    multi_query = fields.get("multi_query_attention", False)
    vocab_size = fields.need_int("vocab_size")
    embedding_size = fields.get_int("embedding_size", vocab_size)
    eos_ids = _eos_ids(fields, "llada", embedding_size)
    return ModelConfig(
        family="llada",
        vocab_size=vocab_size,
        embedding_size=max(embedding_size, vocab_size),
        width=width,
        num_layers=fields.need_int("n_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.get_int("n_kv_heads", 1 if multi_query else num_heads),
        head_dim=width // num_heads,
        ff_width=fields.get_int("mlp_hidden_size", fields.get_int("mlp_ratio", 4) * width),
        rope_theta=float(fields.get("rope_theta", 10_000.0)),
        norm_eps=float(fields.get("rms_norm_eps", 1e-5)),
        qkv_bias=bool(fields.get("include_qkv_bias", False)),
        tie_embeddings=bool(fields.get("weight_tying", False)),
        max_length=fields.need_int("max_sequence_length"),
        mask_token_id=fields.need_int("mask_token_id"),
        pad_token_id=fields.get_int("pad_token_id", eos_ids[0]),
        eos_token_ids=eos_ids,
        predicts_next=False,
    )


def _to_llada(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        "vocab_size": config.vocab_size,
        "embedding_size": config.embedding_size,
        "d_model": config.width,
        "n_layers": config.num_layers,
        "n_heads": config.num_heads,
        "n_kv_heads": config.num_kv_heads,
        "mlp_ratio": 4,
        "mlp_hidden_size": config.ff_width,
        "activation_type": "silu",
        "block_type": "llama",
        "block_group_size": 1,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "rms_norm_eps": config.norm_eps,
        "alibi": False,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": config.rope_theta,
        "include_bias": False,
        "include_qkv_bias": config.qkv_bias,
        "weight_tying": config.tie_embeddings,
        "max_sequence_length": config.max_length,
        "mask_token_id": config.mask_token_id,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": _hf_eos(config),
    }


# Dream advises canvases of at most 2,048 tokens although its rotary table reaches further.
_DREAM_ADVISED_LENGTH = 2048


def _from_dream(fields: _Fields) -> ModelConfig:
    fields.only("hidden_act", "silu", default="silu")
    fields.only("rope_scaling", None, default=None)
    fields.only("use_mrope", False, default=False)
    fields.only("use_sliding_window", False, default=False)
    width = fields.need_int("hidden_size")
    num_heads = fields.need_int("num_attention_heads")
    if num_heads < 1 or width % num_heads:
        raise ConfigError(
            f"config.json has hidden_size = {width}, which num_attention_heads = {num_heads} does not divide"
        )
    vocab_size = fields.need_int("vocab_size")
    eos_ids = _eos_ids(fields, "dream", vocab_size)
    return ModelConfig(
        family="dream",
        vocab_size=vocab_size,
        embedding_size=vocab_size,
        width=width,
        num_layers=fields.need_int("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=fields.get_int("num_key_value_heads", num_heads),
        head_dim=fields.get_int("head_dim", width // num_heads),
        ff_width=fields.need_int("intermediate_size"),
        rope_theta=float(fields.get("rope_theta", 10_000.0)),
        norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
        qkv_bias=bool(fields.get("attention_bias", True)),
        tie_embeddings=bool(fields.get("tie_word_embeddings", False)),
        max_length=min(fields.need_int("max_position_embeddings"), _DREAM_ADVISED_LENGTH),
        mask_token_id=fields.need_int("mask_token_id"),
        pad_token_id=fields.get_int("pad_token_id", eos_ids[0]),
        eos_token_ids=eos_ids,
        predicts_next=True,
    )


def _to_dream(config: ModelConfig) -> dict[str, Any]:
    return {
        "model_type": "Dream",
        "architectures": ["DreamModel"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ff_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": config.qkv_bias,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_length,
        "mask_token_id": config.mask_token_id,
        "pad_token_id": config.pad_token_id,
        "eos_token_id": _hf_eos(config),
    }


def _hf_eos(config: ModelConfig) -> int | list[int]:
    """A lone id as a number, as the published files have it."""
    ids = config.eos_token_ids
    return ids[0] if len(ids) == 1 else list(ids)


_READERS = {"llada": _from_llada, "dream": _from_dream}
_WRITERS = {"llada": _to_llada, "dream": _to_dream}
