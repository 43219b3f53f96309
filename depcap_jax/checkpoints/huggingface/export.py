"""The way back: a model, or a converted checkpoint, as a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.keys import entries
from depcap_jax.checkpoints.publish import published_folder, write_errors
from depcap_jax.checkpoints.storage import (
    DTYPES,
    MANIFEST,
    SOURCE,
    StoredCheckpoint,
    cast_values,
    common_dtype,
    dtype_name,
    is_stored,
    read_json,
    write_json,
)
from depcap_jax.checkpoints.tokenizer import copy_tokenizer_files
from depcap_jax.models import ConfigError, ModelConfig, Transformer
from depcap_jax.models.parameters import get_leaves

_SAFETENSORS_NAMES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}

# Rows that are transposed and written at once.
_ROWS = 256


def export(
    source: str | os.PathLike[str] | Transformer,
    target: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    tokenizer: Any = None,
    overwrite: bool = False,
) -> Path:
    """Writes `config.json`, `model.safetensors` and the tokenizer's files, in the family's published layout.

    With the dtype of the checkpoint, the tensors are those it was converted from, bit for bit.

    Args:
      source: a converted checkpoint's folder (a parameter is in memory at a time), or a model.
      target: the folder to make; it appears complete or not at all.
      dtype: float32, bfloat16 or float16; None keeps that of the source.
      tokenizer: saved beside a model given as such; a converted checkpoint brings its own files.
      overwrite: replaces a folder at `target` that has a `config.json`.

    Returns:
      The target's path.

    Raises:
      CheckpointError: if the source is no converted checkpoint, or the target cannot be written.
    """
    dtype = None if dtype is None else dtype_name(dtype)
    place = Path(target)
    _check_target(place, overwrite)
    if isinstance(source, Transformer):
        origin = _Origin.of_model(source, tokenizer)
    else:
        origin = _Origin.of_checkpoint(Path(source), place)
    dtype = dtype or origin.dtype
    with published_folder(place.resolve(), replace=overwrite) as work, write_errors(work):
        write_tensors(work / "model.safetensors", origin.config, origin.leaves, dtype)
        write_json(work / "config.json", _with_dtype(origin.published, dtype))
        origin.save_tokenizer(work)
    return place


@dataclasses.dataclass(frozen=True)
class _Origin:
    """What is exported, wherever it comes from."""

    config: ModelConfig
    published: Mapping[str, Any]
    """The `config.json` to write."""
    dtype: str
    leaves: Iterator[tuple[str, np.ndarray]]
    save_tokenizer: Callable[[Path], Any]

    @classmethod
    def of_model(cls, model: Transformer, tokenizer: Any) -> _Origin:
        dtype = common_dtype(dtype_name(leaf.dtype) for leaf in get_leaves(model).values())
        save = (lambda _: None) if tokenizer is None else tokenizer.save_pretrained
        return cls(model.config, model.config.to_hf(), dtype, _model_leaves(model), save)

    @classmethod
    def of_checkpoint(cls, folder: Path, target: Path) -> _Origin:
        if not is_stored(folder):
            raise CheckpointError(f"source {folder} is no converted checkpoint: it has no {MANIFEST}")
        if folder.resolve() == target.resolve() or target.resolve() in folder.resolve().parents:
            raise CheckpointError(f"target {target} is, or holds, the source {folder}; choose another place")
        stored = StoredCheckpoint(folder)
        save = functools.partial(copy_tokenizer_files, stored.tokenizer_folder)
        return cls(stored.config, _published_config(stored), stored.dtype, _stored_leaves(stored), save)


def _check_target(target: Path, overwrite: bool) -> None:
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not overwrite:
        raise CheckpointError(f"target {target} exists; choose another place or ask to overwrite it")
    if not (target / "config.json").is_file():
        raise CheckpointError(f"target {target} is no Hugging Face folder; it will not be overwritten")


def _model_leaves(model: Transformer) -> Iterator[tuple[str, np.ndarray]]:
    for leaf, value in get_leaves(model).items():
        yield leaf, np.asarray(value)


def _stored_leaves(stored: StoredCheckpoint) -> Iterator[tuple[str, np.ndarray]]:
    here = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    for leaf in stored.leaves:
        yield leaf, np.asarray(stored.read_stored(leaf, here))


def _published_config(stored: StoredCheckpoint) -> dict[str, Any]:
    """The `config.json` it came with, if that still describes it: it says more than we read from it."""
    path = stored.folder / SOURCE
    published = read_json(path).get("config", {}) if path.is_file() else {}
    try:
        same = ModelConfig.from_hf(published) == stored.config
    except ConfigError:
        same = False
    return published if same else published | stored.config.to_hf()


def _with_dtype(published: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    # Newer releases of transformers write "dtype", older ones read only "torch_dtype".
    return {**published, "dtype" if "dtype" in published else "torch_dtype": dtype}


def write_tensors(
    path: Path, config: ModelConfig, leaves: Iterable[tuple[str, np.ndarray]], dtype: str
) -> None:
    """Writes a safetensors file front to back, so that one parameter is in memory at a time.

    The format: the header's length in 8 bytes, the header in JSON, the tensors one after the other.
    """
    table = {entry.leaf: entry for entry in entries(config)}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in table.values():
        begin, end = end, end + math.prod(entry.shape) * DTYPES[dtype].itemsize
        header[entry.key] = {
            "dtype": _SAFETENSORS_NAMES[dtype],
            "shape": list(entry.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        # Both follow the model's own order of parameters.
        for entry, (leaf, values) in zip(table.values(), leaves, strict=True):
            assert leaf == entry.leaf
            matrix = values.T if entry.transposed else values
            for row in range(0, len(matrix), _ROWS):
                block = cast_values(matrix[row : row + _ROWS], dtype, f"parameter {leaf!r}")
                file.write(block.tobytes())
            del values, matrix  # before the next one is read
