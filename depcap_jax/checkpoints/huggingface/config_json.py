"""The published `config.json` of each family, read and written from one table per family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from depcap_jax.checkpoints.errors import CheckpointConfigError
from depcap_jax.checkpoints.json_files import read_json
from depcap_jax.models.config import ConfigError, Family, ModelConfig

CONFIG = "config.json"

T = TypeVar("T", int, float, bool)
_KINDS: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Dialect:
    """How one family's `config.json` describes a model."""

    model_type: str
    architecture: str
    names: Mapping[str, str]
    """From a field of `ModelConfig` to its name in the file; a field without a name follows from others."""
    norm_eps: float
    """Where the file does not say."""
    qkv_bias: bool
    """Where the file does not say."""
    only: Mapping[str, tuple[Any, ...]]
    """The values that the transformer implements; the first is the default, and what is written."""
    longest: int | None
    """The longest canvas that the authors advise, whatever the file says."""
    turn_end_ids: Mapping[int, tuple[int, ...]]
    """Ids that end a chat turn besides `eos_token_id`, by the vocabulary's size.

    The published files do not list them, so they are recognised by the published size.
    """
    predicts_next: bool


_DIALECTS: dict[Family, _Dialect] = {
    "llada": _Dialect(
        model_type="llada",
        architecture="LLaDAModelLM",
        names={
            "vocab_size": "vocab_size",
            "embedding_size": "embedding_size",
            "width": "d_model",
            "num_layers": "n_layers",
            "num_heads": "n_heads",
            "num_kv_heads": "n_kv_heads",
            "ff_width": "mlp_hidden_size",
            "rope_theta": "rope_theta",
            "norm_eps": "rms_norm_eps",
            "qkv_bias": "include_qkv_bias",
            "tie_embeddings": "weight_tying",
            "max_length": "max_sequence_length",
            "mask_token_id": "mask_token_id",
            "pad_token_id": "pad_token_id",
        },
        norm_eps=1e-5,
        qkv_bias=False,
        only={
            "alibi": (False,),
            "rope": (True,),
            "rope_full_precision": (True,),
            "rope_scaling": (None,),
            "block_type": ("llama",),
            "block_group_size": (1,),
            "activation_type": ("silu", "swiglu"),
            "layer_norm_type": ("rms",),
            "layer_norm_with_affine": (True,),
            "attention_layer_norm": (False,),
            "bias_for_layer_norm": (False,),
            "include_bias": (False,),
            "input_emb_norm": (False,),
            "scale_logits": (False,),
            "clip_qkv": (None,),
        },
        longest=None,
        turn_end_ids={126464: (126348,)},  # <|eot_id|>
        predicts_next=False,
    ),
    "dream": _Dialect(
        model_type="Dream",
        architecture="DreamModel",
        names={
            "vocab_size": "vocab_size",
            "width": "hidden_size",
            "num_layers": "num_hidden_layers",
            "num_heads": "num_attention_heads",
            "num_kv_heads": "num_key_value_heads",
            "head_dim": "head_dim",
            "ff_width": "intermediate_size",
            "rope_theta": "rope_theta",
            "norm_eps": "rms_norm_eps",
            "qkv_bias": "attention_bias",
            "tie_embeddings": "tie_word_embeddings",
            "max_length": "max_position_embeddings",
            "mask_token_id": "mask_token_id",
            "pad_token_id": "pad_token_id",
        },
        norm_eps=1e-6,
        qkv_bias=True,
        only={
            "hidden_act": ("silu",),
            "rope_scaling": (None,),
            "use_mrope": (False,),
            "use_sliding_window": (False,),
        },
        longest=2048,  # although its rotary table reaches further
        turn_end_ids={152064: (151645,)},  # <|im_end|>
        predicts_next=True,
    ),
}


def read_config(folder: Path) -> ModelConfig:
    """The config of a Hugging Face folder.

    Raises:
      CheckpointError: if it has no `config.json`, that is no JSON object, or `from_config_json` refuses it.
    """
    try:
        return from_config_json(read_json(folder / CONFIG))
    except ConfigError as error:
        raise CheckpointConfigError(f"{folder}: {error}") from None


def from_config_json(content: Mapping[str, Any]) -> ModelConfig:
    """The config that a parsed `config.json` describes.

    Raises:
      ConfigError: naming the field, its value and what is implemented, if a field is missing, out of
        range, or asks for an architecture that this library does not have.
    """
    family = _family(content)
    dialect = _DIALECTS[family]
    fields = _Fields(content, dialect.names)
    for name, allowed in dialect.only.items():
        if (value := fields.get(name, allowed[0])) not in allowed:
            choices = " or ".join(map(repr, allowed))
            raise ConfigError(f"{CONFIG} has {name} = {value!r}; implemented: {choices}")
    width, num_heads, vocab_size = (fields.read(name, int) for name in ("width", "num_heads", "vocab_size"))
    if num_heads < 1 or width % num_heads:
        heads = f"{dialect.names['num_heads']} = {num_heads}"
        raise ConfigError(f"{CONFIG} has {dialect.names['width']} = {width}, which {heads} does not divide")
    embedding_size = max(fields.read("embedding_size", int, vocab_size), vocab_size)
    eos_ids = _eos_ids(fields, dialect.turn_end_ids.get(embedding_size, ()))
    max_length = fields.read("max_length", int)
    # Two fallbacks that only LLaDA has.
    kv_heads = 1 if fields.get("multi_query_attention", False) else num_heads
    ff_width = None if family == "dream" else width * _checked("mlp_ratio", fields.get("mlp_ratio", 4), int)
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        embedding_size=embedding_size,
        width=width,
        num_layers=fields.read("num_layers", int),
        num_heads=num_heads,
        num_kv_heads=fields.read("num_kv_heads", int, kv_heads),
        head_dim=fields.read("head_dim", int, width // num_heads),
        ff_width=fields.read("ff_width", int, ff_width),
        rope_theta=fields.read("rope_theta", float, 10_000.0),
        norm_eps=fields.read("norm_eps", float, dialect.norm_eps),
        qkv_bias=fields.read("qkv_bias", bool, dialect.qkv_bias),
        tie_embeddings=fields.read("tie_embeddings", bool, False),
        max_length=min(max_length, dialect.longest or max_length),
        mask_token_id=fields.read("mask_token_id", int),
        pad_token_id=fields.read("pad_token_id", int, eos_ids[0]),
        eos_token_ids=eos_ids,
        predicts_next=dialect.predicts_next,
    )


def to_config_json(config: ModelConfig) -> dict[str, Any]:
    """The fields of a published `config.json` that `from_config_json` reads back to this config."""
    dialect = _DIALECTS[config.family]
    eos_ids = config.eos_token_ids
    return {
        "model_type": dialect.model_type,
        "architectures": [dialect.architecture],
        **{name: allowed[0] for name, allowed in dialect.only.items()},
        **{name: getattr(config, field) for field, name in dialect.names.items()},
        # A lone id as a number, as the published files have it.
        "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids),
    }


class _Fields:
    """A parsed `config.json`; every complaint has the file's own name of the field."""

    def __init__(self, content: Mapping[str, Any], names: Mapping[str, str]):
        self._content = content
        self._names = names

    def get(self, name: str, default: Any) -> Any:
        """What the file has under `name`, or `default` where that is absent or null."""
        value = self._content.get(name)
        return default if value is None else value

    def read(self, field: str, kind: type[T], default: T | None = None) -> T:
        """A field of `ModelConfig`; without a default the file must have it."""
        name = self._names.get(field, "")
        value = self.get(name, default)
        if value is None:
            raise ConfigError(f"{CONFIG} lacks {name!r}")
        return _checked(name, value, kind)


def _checked(name: str, value: Any, kind: type[T]) -> T:
    # To Python a bool is an int as well.
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{CONFIG} has {name} = {value!r}; {_KINDS[kind]} is expected")
    return kind(value)


def _family(content: Mapping[str, Any]) -> Family:
    model_type = content.get("model_type")
    if model_type is None:
        raise ConfigError(f"{CONFIG} lacks 'model_type'")
    for family, dialect in _DIALECTS.items():
        if str(model_type).lower() == dialect.model_type.lower():
            return family
    known = " or ".join(repr(dialect.model_type) for dialect in _DIALECTS.values())
    raise ConfigError(f"{CONFIG} has model_type = {model_type!r}; implemented: {known}")


def _eos_ids(fields: _Fields, turn_ends: tuple[int, ...]) -> tuple[int, ...]:
    declared = fields.get("eos_token_id", [])
    ids = declared if isinstance(declared, list) else [declared]
    if not ids:
        raise ConfigError(f"{CONFIG} lacks 'eos_token_id'")
    return tuple(dict.fromkeys([*(_checked("eos_token_id", id_, int) for id_ in ids), *turn_ends]))
