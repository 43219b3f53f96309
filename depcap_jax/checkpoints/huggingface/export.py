"""The way back: a model, or a converted checkpoint, as a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from depcap_jax.checkpoints.dtypes import DTYPES, cast_values, common_dtype, dtype_name
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.config_json import CONFIG, from_config_json, to_config_json
from depcap_jax.checkpoints.huggingface.keys import entries
from depcap_jax.checkpoints.huggingface.readers import SAFETENSORS_DTYPES
from depcap_jax.checkpoints.publish import check_target, published_folder, write_errors
from depcap_jax.checkpoints.small_files import has_file, read_json, write_json
from depcap_jax.checkpoints.storage import KIND, MANIFEST, SOURCE, StoredCheckpoint, is_stored
from depcap_jax.checkpoints.tokenizer import copy_tokenizer_files
from depcap_jax.models import ConfigError, ModelConfig, Transformer
from depcap_jax.models.parameters import dequantize_leaf, get_leaves

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
      source: a converted checkpoint's folder (one parameter is in memory at a time), or a model.
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
    folder = None if isinstance(source, Transformer) else Path(source)
    place = check_target(
        Path(target), overwrite=overwrite, kind="Hugging Face folder", marker=CONFIG, source=folder
    )
    if isinstance(source, Transformer):
        leaves, config, published = get_leaves(source), source.config, to_config_json(source.config)
        dtype = dtype or common_dtype(leaf.dtype for leaf in leaves.values())
        read = functools.partial(dequantize_leaf, leaves=leaves)
        save_tokenizer = (lambda _: None) if tokenizer is None else tokenizer.save_pretrained
    elif is_stored(Path(source)):
        stored = StoredCheckpoint(Path(source))
        config, published, dtype = stored.config, _published_config(stored), dtype or stored.dtype
        read = stored.read_in_full
        save_tokenizer = functools.partial(copy_tokenizer_files, stored.tokenizer_folder)
    else:
        raise CheckpointError(f"source {source} is no {KIND}: it has no {MANIFEST}")
    # Newer releases of transformers write "dtype", older ones read only "torch_dtype".
    published = {**published, "dtype" if "dtype" in published else "torch_dtype": dtype}
    with published_folder(place, replace=overwrite) as work, write_errors(work):
        write_tensors(work / "model.safetensors", config, lambda leaf: np.asarray(read(leaf)), dtype)
        write_json(work / CONFIG, published)
        save_tokenizer(work)
    return Path(target)


def _published_config(stored: StoredCheckpoint) -> dict[str, Any]:
    """The `config.json` it came with, if that still describes it: it says more than we read from it."""
    path = stored.folder / SOURCE
    published = read_json(path).get("config", {}) if has_file(path) else {}
    try:
        same = from_config_json(published) == dataclasses.replace(stored.config, quantize=None)
    except ConfigError:
        same = False
    return published if same else published | to_config_json(stored.config)


def write_tensors(path: Path, config: ModelConfig, read: Callable[[str], np.ndarray], dtype: str) -> None:
    """Writes a safetensors file front to back, so that one parameter is in memory at a time.

    The format: the header's length in 8 bytes, the header in JSON, the tensors one after the other.
    `read` gives the parameter with a dotted name.
    """
    table = entries(config)
    names = {ours: theirs for theirs, ours in SAFETENSORS_DTYPES.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in table:
        begin, end = end, end + math.prod(entry.shape) * DTYPES[dtype].itemsize
        offsets = {"data_offsets": [begin, end]}
        header[entry.key] = {"dtype": names[dtype], "shape": list(entry.shape), **offsets}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for entry in table:
            matrix = read(entry.leaf).T if entry.transposed else read(entry.leaf)
            for row in range(0, len(matrix), _ROWS):
                block = cast_values(matrix[row : row + _ROWS], dtype, f"parameter {entry.leaf!r}")
                file.write(block.tobytes())
            del matrix  # before the next one is read
