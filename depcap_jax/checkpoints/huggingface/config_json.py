"""The published `config.json` of each family, read and written by the tables in `dialects`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.checkpoints.errors import CheckpointConfigError
from depcap_jax.checkpoints.huggingface.dialects import DIALECTS, REPOSITORIES, Dialect
from depcap_jax.checkpoints.small_files import read_json
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.models.config import ConfigError, Family, ModelConfig

CONFIG = "config.json"

_PRECISIONS = {"amp_bf16": "bfloat16", "amp_fp16": "float16"}

T = TypeVar("T", int, float, bool)
_KINDS: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false"}


def read_config(
    folder: Path,
    *,
    repository: str | None = None,
    mask_token_id: int | None = None,
    predicts_next: bool | None = None,
) -> ModelConfig:
    """The config of a Hugging Face folder.

    What the caller tells counts before what `config.json` says, that before the tokenizer, that before
    what is known of the `repository` or the model type.

    Raises:
      CheckpointError: if it has no `config.json`, that is no JSON object, or `from_config_json` refuses it.
    """
    hints = {"mask_token_id": mask_token_id, "predicts_next": predicts_next}
    content = {**read_json(folder / CONFIG), **_present(hints)}
    known = REPOSITORIES.get(repository or "", {})
    if known.get("block_causal"):
        raise CheckpointConfigError(
            f"{repository} sees no block behind its own (BD3-LM); implemented: models that see all positions"
        )
    try:
        _model_type(content)  # before the tokenizer of some other kind of model is tried
        return from_config_json({**known, **_tokenizer_ids(content, folder), **_present(content)})
    except ConfigError as error:
        raise CheckpointConfigError(f"{folder}: {error}") from None


def published_dtype(folder: Path) -> str:
    """The name of the dtype that the weights of a Hugging Face folder are said to have; else float32."""
    content = read_json(folder / CONFIG)
    # "torch_dtype" before transformers 5; "precision" in LLaDA's, which have neither.
    names = [content.get(name) for name in ("dtype", "torch_dtype", "precision")]
    dtype = next((name for name in names if name is not None), None)
    dtype = _PRECISIONS.get(dtype, dtype) if isinstance(dtype, str) else None
    return dtype if dtype in DTYPES else "float32"


def _tokenizer_ids(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The ids that `content` lacks and the folder's tokenizer has."""
    missing = [name for name in ("mask_token_id", "eos_token_id") if content.get(name) is None]
    tokenizer = load_tokenizer(folder) if missing else None
    return _present({name: getattr(tokenizer, name, None) for name in missing})


def _present(content: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def from_config_json(content: Mapping[str, Any]) -> ModelConfig:
    """The config that a parsed `config.json` describes.

    Raises:
      ConfigError: naming the field, its value and what is implemented, if a field is missing, out of
        range, or asks for an architecture that this library does not have.
    """
    family, model_type = _model_type(content)
    dialect = DIALECTS[family]
    fields = _Fields(_with_plain_rope(content), dialect)
    for name, allowed in dialect.only.items():
        value = fields.get(name, allowed[0])
        if any(each not in allowed for each in (value if isinstance(value, list) else [value])):
            choices = " or ".join(map(repr, allowed))
            raise ConfigError(f"{CONFIG} has {name} = {value!r}; implemented: {choices}")
    width, num_heads, vocab_size = (fields.read(name, int) for name in ("width", "num_heads", "vocab_size"))
    embedding_size = max(fields.read("embedding_size", int, vocab_size), vocab_size)
    eos_ids = _eos_ids(fields, dialect.turn_end_ids.get(embedding_size, ()))
    max_length = fields.read("max_length", int)
    # Two fallbacks that only LLaDA has.
    kv_heads = 1 if fields.get("multi_query_attention", False) else num_heads
    ff_width = width * _checked("mlp_ratio", fields.get("mlp_ratio", 4), int) if family == "llada" else None
    mask_token_id, predicts_next = _told(fields, model_type, embedding_size)
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        embedding_size=embedding_size,
        width=width,
        num_layers=fields.read("num_layers", int),
        num_heads=num_heads,
        num_kv_heads=fields.read("num_kv_heads", int, kv_heads),
        head_dim=_head_dim(fields, width, num_heads),
        ff_width=fields.read("ff_width", int, ff_width),
        rope_theta=fields.read("rope_theta", float, 10_000.0),
        norm_eps=fields.read("norm_eps", float),
        qkv_bias=fields.read("qkv_bias", bool, False),
        tie_embeddings=fields.read("tie_embeddings", bool, False),
        max_length=min(max_length, dialect.longest or max_length),
        mask_token_id=mask_token_id,
        pad_token_id=fields.read("pad_token_id", int, eos_ids[0]),
        eos_token_ids=eos_ids,
        predicts_next=predicts_next,
        qk_norm=fields.read("qk_norm", bool, False),
    )


def to_config_json(config: ModelConfig) -> dict[str, Any]:
    """The fields of a published `config.json` that `from_config_json` reads back to this config."""
    dialect = DIALECTS[config.family]
    eos_ids, predicts_next = config.eos_token_ids, config.predicts_next
    # Of the family's types the one that says which position is predicted, if there is one.
    kinds = sorted(dialect.model_types.items(), key=lambda kind: kind[1].predicts_next != predicts_next)
    model_type, kind = kinds[0]
    return {
        "model_type": model_type,
        "architectures": [kind.architecture],
        **{name: allowed[0] for name, allowed in dialect.only.items()},
        **{name: getattr(config, field) for field, name in dialect.names.items()},
        # A lone id as a number, as the published files have it.
        "eos_token_id": eos_ids[0] if len(eos_ids) == 1 else list(eos_ids),
        **({} if kind.predicts_next == predicts_next else {"predicts_next": predicts_next}),
    }


def _told(fields: _Fields, model_type: str, embedding_size: int) -> tuple[int, bool]:
    """The mask token's id, and whether the next position is predicted: what many files leave out."""
    _, predicts_next, mask_ids = fields.dialect.model_types[model_type]
    mask_token_id = fields.get("mask_token_id", mask_ids.get(embedding_size))
    predicts_next = fields.get("predicts_next", predicts_next)
    unknown = {}
    if mask_token_id is None:
        unknown["which id is the mask token's"] = "mask_token_id (--mask-id)"
    if predicts_next is None:
        how = "predicts_next (--predicts-next or --no-predicts-next)"
        unknown["whether a position's output predicts the next position"] = how
    if unknown:
        raise ConfigError(
            f"{CONFIG} with model_type = {model_type!r} does not tell {', nor '.join(unknown)}: "
            f"pass {' and '.join(unknown.values())}"
        )
    return _checked("mask_token_id", mask_token_id, int), _checked("predicts_next", predicts_next, bool)


def _head_dim(fields: _Fields, width: int, num_heads: int) -> int:
    names = fields.dialect.names
    if num_heads < 1 or (width % num_heads and fields.find("head_dim") is None):
        heads = f"{names['num_heads']} = {num_heads}"
        raise ConfigError(f"{CONFIG} has {names['width']} = {width}, which {heads} does not divide")
    return fields.read("head_dim", int, width // num_heads)


def _with_plain_rope(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with RoPE's settings, where they are plain, as older releases of transformers write them."""
    rope = content.get("rope_parameters") or content.get("rope_scaling")
    if not isinstance(rope, dict):
        return dict(content)
    plain = {"rope_theta": rope.get("rope_theta"), "rope_type": "default", "type": "default", "factor": 1.0}
    scaling = None if rope.items() <= plain.items() else rope
    return {**_present({"rope_theta": rope.get("rope_theta")}), **_present(content), "rope_scaling": scaling}


class _Fields:
    """A parsed `config.json`; every complaint has the file's own name of the field."""

    def __init__(self, content: Mapping[str, Any], dialect: Dialect):
        self.dialect = dialect
        self._content = content

    def get(self, name: str, default: Any) -> Any:
        """What the file has under `name`, or `default` where that is absent or null."""
        value = self._content.get(name)
        return default if value is None else value

    def read(self, field: str, kind: type[T], default: T | None = None) -> T:
        """A field of `ModelConfig`; without a default the file, or the family, must have it."""
        name = self.dialect.names.get(field, field)
        if (value := self.find(field, default)) is None:
            raise ConfigError(f"{CONFIG} lacks {name!r}")
        return _checked(name, value, kind)

    def find(self, field: str, default: Any = None) -> Any:
        """What the file, or else the family, has for a field of `ModelConfig`; else `default`."""
        default = self.dialect.defaults.get(field, default)
        return self.get(self.dialect.names[field], default) if field in self.dialect.names else default


def _checked(name: str, value: Any, kind: type[T]) -> T:
    # To Python a bool is an int as well, and an int may be too large for a float.
    fits = isinstance(value, (int, float) if kind is float else kind) and abs(value) <= sys.float_info.max
    if not fits or isinstance(value, bool) != (kind is bool):
        raise ConfigError(f"{CONFIG} has {name} = {value!r}; {_KINDS[kind]} is expected")
    return kind(value)


def _model_type(content: Mapping[str, Any]) -> tuple[Family, str]:
    """The family, and the type as the table spells it."""
    model_type = content.get("model_type")
    if model_type is None:
        raise ConfigError(f"{CONFIG} lacks 'model_type'")
    known: list[tuple[Family, str]]
    known = [(family, kind) for family, dialect in DIALECTS.items() for kind in dialect.model_types]
    for family, kind in known:
        if str(model_type).lower() == kind.lower():
            return family, kind
    implemented = " or ".join(repr(kind) for _, kind in known)
    raise ConfigError(f"{CONFIG} has model_type = {model_type!r}; implemented: {implemented}")


def _eos_ids(fields: _Fields, turn_ends: tuple[int, ...]) -> tuple[int, ...]:
    declared = fields.get("eos_token_id", [])
    ids = declared if isinstance(declared, list) else [declared]
    if not ids:
        raise ConfigError(f"{CONFIG} lacks 'eos_token_id'")
    return tuple(dict.fromkeys([*(_checked("eos_token_id", id_, int) for id_ in ids), *turn_ends]))
