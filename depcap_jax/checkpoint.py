"""Loads a model and its tokenizer from a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding, SingleDeviceSharding
from jax.typing import DTypeLike

from depcap_jax.errors import CheckpointError
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.models.parameters import leaf_shapes, with_leaves
from depcap_jax.models.sharding import weight_sharding
from depcap_jax.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DTYPES = ("float32", "bfloat16", "float16")


class WeightSource(Protocol):
    """A checkpoint on disk whose parameters are read one at a time."""

    config: ModelConfig
    dtype: str
    tokenizer_folder: Path

    def read_array(self, leaf: str, dtype: str, sharding: Sharding) -> jax.Array:
        """One parameter, on its devices."""
        ...


def load(
    path: str | os.PathLike[str], *, dtype: DTypeLike | None = None, mesh: Mesh | None = None
) -> tuple[Transformer, PreTrainedTokenizerBase | None]:
    """The model and the tokenizer of a converted folder, or of a Hugging Face folder directly.

    Args:
      path: the folder.
      dtype: float32, bfloat16 or float16; None keeps that of the checkpoint.
      mesh: restores every parameter already split over these devices, along the axes that are named
        "data" and "tensor" (`depcap_jax.models.sharding` has the table); None: one device.

    Returns:
      The model, and None in place of a tokenizer that the folder does not have.

    Raises:
      CheckpointError: if the path is no checkpoint, or a damaged or contradictory one.
    """
    source = _open(_folder_of(path))
    name = source.dtype if dtype is None else dtype_name(dtype)
    leaves = {
        leaf: source.read_array(leaf, name, _sharding_of(leaf, source.config, mesh))
        for leaf in leaf_shapes(source.config)
    }
    return with_leaves(source.config, leaves), load_tokenizer(source.tokenizer_folder)


def dtype_name(dtype: DTypeLike) -> str:
    """The name of one of the dtypes that a model may have; raises `CheckpointError` for others."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return name


def place(
    shape: tuple[int, ...], sharding: Sharding, read: Callable[[tuple[slice, ...]], np.ndarray]
) -> jax.Array:
    """An array whose parts are read and put on their devices one after the other.

    The host holds one part at a time; a part that several devices share is read once.
    """
    devices_of: dict[tuple[tuple[int, int, int], ...], list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        extent = tuple(part.indices(size) for part, size in zip(index, shape, strict=True))
        devices_of.setdefault(extent, []).append(device)
    parts = []
    for extent, devices in devices_of.items():
        part = read(tuple(slice(*bounds) for bounds in extent))
        parts += [jax.device_put(part, device).block_until_ready() for device in devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _folder_of(name_or_path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint lies: the one place that decides what a name stands for."""
    folder = Path(name_or_path)
    if not folder.exists():
        raise CheckpointError(f"no such folder: {folder}; a checkpoint's folder is expected")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; the folder that holds a checkpoint is expected")
    return folder


def _open(folder: Path) -> WeightSource:
    from convert.source import HuggingFaceSource  # PyTorch's layouts, only if they are met

    return HuggingFaceSource(folder)


def _sharding_of(leaf: str, config: ModelConfig, mesh: Mesh | None) -> Sharding:
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    return weight_sharding(leaf, config, mesh)
