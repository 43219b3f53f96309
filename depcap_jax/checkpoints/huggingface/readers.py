"""Reads tensors of PyTorch checkpoint files, a slice at a time and memory-mapped.

Nothing stays mapped between two reads: mapped pages count as resident, and a shard has gigabytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.checkpoints.errors import CheckpointError, first_line

Index = tuple[slice, ...]

SAFETENSORS_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""From safetensors' names of dtypes to those in `DTYPES`."""


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What a file's header says of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    """One of `DTYPES`, or the file's own word for something else."""

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


class SafetensorsFile:
    """A `.safetensors` file; raises `CheckpointError` if its header does not cover it exactly."""

    def __init__(self, path: Path):
        self.path = path
        self.tensors: dict[str, TensorInfo] = {}
        with self._mapped() as file:
            for key in file.keys():  # noqa: SIM118 (not a mapping)
                part = file.get_slice(key)
                dtype = str(part.get_dtype())
                self.tensors[key] = TensorInfo(tuple(part.get_shape()), SAFETENSORS_DTYPES.get(dtype, dtype))

    def read(self, key: str, index: Index) -> np.ndarray:
        """A copy of the part of one tensor at `index`: one slice per axis, with known ends."""
        with self._mapped() as file:
            return file.get_slice(key)[index]

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[Any]:
        try:
            with safe_open(self.path, framework="numpy") as file:
                yield file
        except SafetensorError as error:
            raise CheckpointError(
                f"{self.path} is truncated or corrupt, not a whole safetensors file: {error}"
            ) from None
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be read: {error}") from None


class TorchFile:
    """A `.bin` file of `torch.save`, read with `weights_only=True`; needs PyTorch."""

    def __init__(self, path: Path):
        self.path = path
        self._torch = _import_torch(path)
        self.tensors: Mapping[str, TensorInfo] = {
            key: TensorInfo(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for key, tensor in self._load().items()
        }

    def read(self, key: str, index: Index) -> np.ndarray:
        """A copy of the part of one tensor at `index`: one slice per axis, with known ends."""
        torch = self._torch
        # Loading anew parses a few kilobytes and drops the pages that earlier reads touched.
        part = self._load()[key][index].detach().clone(memory_format=torch.contiguous_format)
        if part.dtype == torch.bfloat16:  # numpy has no such dtype: pass the bits
            return part.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        return part.numpy()

    def _load(self) -> dict[str, Any]:
        torch = self._torch
        try:
            state = torch.load(self.path, map_location="cpu", mmap=True, weights_only=True)
        except Exception as error:  # torch raises half a dozen kinds for a broken archive
            raise CheckpointError(
                f"{self.path} is truncated or corrupt, or no archive of weights alone: {first_line(error)}"
            ) from None
        if not isinstance(state, dict):
            raise CheckpointError(
                f"{self.path} holds a {type(state).__name__}; a dict from names to tensors is expected"
            )
        for key, value in state.items():
            if not isinstance(key, str) or not isinstance(value, torch.Tensor):
                raise CheckpointError(
                    f"{self.path} holds {key!r}: {type(value).__name__}; names with tensors are expected"
                )
            if value.layout != torch.strided or value.is_meta or value.is_nested:
                kind = "meta" if value.is_meta else str(value.layout).removeprefix("torch.")
                raise CheckpointError(
                    f"tensor {key!r} in {self.path} is of kind {kind}; one with all its numbers is expected"
                )
        return state


def _import_torch(path: Path) -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError:
        raise CheckpointError(
            f"{path} is a PyTorch archive, which needs PyTorch: pip install 'depcap_jax[torch]', "
            "or convert it to safetensors first"
        ) from None
    return torch


TensorFile = SafetensorsFile | TorchFile
"""One file of a PyTorch checkpoint."""
