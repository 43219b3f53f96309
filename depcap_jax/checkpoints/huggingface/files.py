"""Which files make up a Hugging Face checkpoint, and which tensor is in which of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.readers import SafetensorsFile, TensorFile, TensorInfo, TorchFile
from depcap_jax.checkpoints.small_files import has_file, read_json

# In order of preference: a folder may hold the same weights in more than one form.
_FORMS: list[tuple[str, Callable[[Path], TensorFile]]] = [
    ("model.safetensors", SafetensorsFile),
    ("pytorch_model.bin", TorchFile),
]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """One tensor and the file that has it."""

    key: str
    file: TensorFile
    info: TensorInfo


def has_weights(folder: Path) -> bool:
    """True if the folder has weights, or their index, under their published names."""
    return any(
        has_file(folder / name, math.inf) or has_file(folder / f"{name}.index.json") for name, _ in _FORMS
    )


def open_files(folder: Path) -> tuple[list[Path], dict[str, StoredTensor]]:
    """The weight files of `folder` (with the index, if any), and every tensor in them by its key.

    Raises:
      CheckpointError: if there are none, one is absent, truncated or corrupt, the index leaves the
        folder or disagrees with the files, or a tensor is there twice.
    """
    for name, reader in _FORMS:
        if has_file(folder / name, math.inf):
            file = reader(folder / name)
            return [file.path], _collect([file])
        if has_file(index := folder / f"{name}.index.json"):
            weight_map = _weight_map(index)
            files = [reader(folder / shard) for shard in sorted(set(weight_map.values()))]
            tensors = _collect(files)
            _check_index(weight_map, tensors, index)
            return [index, *(file.path for file in files)], tensors
    known = ", ".join(f"{name} or {name}.index.json" for name, _ in _FORMS)
    raise CheckpointError(f"{folder} has no weights; one of these is expected: {known}")


def _collect(files: list[TensorFile]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for key, info in file.tensors.items():
            if key in tensors:
                raise CheckpointError(
                    f"duplicate tensor {key!r}: in {tensors[key].file.path} and in {file.path}; "
                    "each is expected once"
                )
            tensors[key] = StoredTensor(key, file, info)
    return tensors


def _weight_map(index: Path) -> dict[str, str]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no 'weight_map' from tensor names to file names")
    for shard in weight_map.values():
        folder = index.parent
        if not isinstance(shard, str) or shard in ("", "..") or "\0" in shard or Path(shard).name != shard:
            raise CheckpointError(f"{index} names {shard!r}; the name of a file in {folder} is expected")
        if not has_file(folder / shard, math.inf):
            raise CheckpointError(f"{index} names {shard!r}, which is not in {folder}")
    return weight_map


def _check_index(weight_map: dict[str, str], tensors: dict[str, StoredTensor], index: Path) -> None:
    for key, shard in weight_map.items():
        if key not in tensors:
            raise CheckpointError(f"missing tensor {key!r}: {index} places it in {shard}, which lacks it")
        if tensors[key].file.path.name != shard:
            raise CheckpointError(
                f"tensor {key!r} is in {tensors[key].file.path}, but {index} places it in {shard}"
            )
    for key, tensor in tensors.items():
        if key not in weight_map:
            raise CheckpointError(f"unknown tensor {key!r} in {tensor.file.path}: {index} does not list it")
