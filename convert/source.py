"""A Hugging Face checkpoint seen as the parameters of our model."""

from __future__ import annotations

import functools
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Sharding

from convert.files import StoredTensor, open_files
from convert.keys import Entry, entries
from convert.readers import DTYPES, Index
from depcap_jax.checkpoint import place
from depcap_jax.errors import CheckpointConfigError, CheckpointError
from depcap_jax.models import ConfigError, ModelConfig

# Rows copied at once. Transposing 403 MB of bfloat16 took 0.40 s with 256 and 1.1 s with 512:
# the columns that are being filled then no longer fit in the cache.
_ROWS = 256


class HuggingFaceSource:
    """The parameters of a Hugging Face folder, each read from its file when it is asked for.

    Opening one checks every name, shape and dtype against the config: `CheckpointError` names the
    tensor, its file and what was expected.
    """

    def __init__(self, folder: Path):
        self.tokenizer_folder = folder
        self.config = _read_config(folder)
        self.files, tensors = open_files(folder)
        self._parts = {
            entry.leaf: (entry, tensors[entry.key]) for entry in _match(self.config, tensors, folder)
        }
        self.dtype = _common_dtype([tensor.info.dtype for _, tensor in self._parts.values()])

    @property
    def leaves(self) -> list[str]:
        """The dotted names of the parameters, in the order of the files: reading in it is sequential."""
        order = {path: position for position, path in enumerate(self.files)}
        return sorted(self._parts, key=lambda leaf: order[self._parts[leaf][1].file.path])

    def key(self, leaf: str) -> str:
        """The name that a parameter has in the files."""
        return self._parts[leaf][0].key

    def nbytes(self, leaf: str) -> int:
        """The bytes that a parameter takes in the files."""
        return self._parts[leaf][1].info.nbytes

    def shape(self, leaf: str) -> tuple[int, ...]:
        """The shape of a parameter as our model has it."""
        entry = self._parts[leaf][0]
        return entry.shape[::-1] if entry.transposed else entry.shape

    def read(self, leaf: str, dtype: str, index: Index | None = None) -> np.ndarray:
        """A parameter, or the part of it at `index`, contiguous and cast.

        Raises:
          CheckpointError: if the file became unreadable or a number does not fit float16.
        """
        entry, tensor = self._parts[leaf]
        whole = tuple(slice(0, size) for size in self.shape(leaf))
        index = tuple(
            slice(*part.indices(size)) for part, size in zip(index or whole, self.shape(leaf), strict=True)
        )
        out = np.empty([part.stop - part.start for part in index], DTYPES[dtype])
        filled = out.T if entry.transposed else out
        first, *rest = index[::-1] if entry.transposed else index
        with tensor.file.open(tensor.key) as part:
            for row in range(first.start, first.stop, _ROWS):
                end = min(row + _ROWS, first.stop)
                block = part((slice(row, end), *rest))
                filled[row - first.start : end - first.start] = _cast(block, dtype, tensor)
        return out

    def read_array(self, leaf: str, dtype: str, sharding: Sharding) -> jax.Array:
        """A parameter on its devices; each part is read from the file by itself."""
        return place(self.shape(leaf), sharding, lambda index: self.read(leaf, dtype, index))


def _read_config(folder: Path) -> ModelConfig:
    try:
        return ModelConfig.from_hf(folder / "config.json")
    except ConfigError as error:
        raise CheckpointConfigError(f"{folder}: {error}") from None


def _match(config: ModelConfig, tensors: dict[str, StoredTensor], folder: Path) -> list[Entry]:
    table = {entry.key: entry for entry in entries(config)}
    for key, tensor in tensors.items():
        where = f"tensor {key!r} in {tensor.file.path}"
        if key not in table:
            raise CheckpointError(
                f"unknown {where}: the config.json ({config.family}, {config.num_layers} layers) "
                f"expects {len(table)} tensors and this is none of them"
            )
        if tensor.info.shape != table[key].shape:
            raise CheckpointError(
                f"{where} has shape {list(tensor.info.shape)}; "
                f"the config.json makes it {list(table[key].shape)}"
            )
        if tensor.info.dtype not in DTYPES:
            raise CheckpointError(f"{where} has dtype {tensor.info.dtype}; allowed: {', '.join(DTYPES)}")
    if missing := [entry for entry in table.values() if entry.key not in tensors]:
        more = f" ({len(missing)} are missing in all)" if len(missing) > 1 else ""
        raise CheckpointError(
            f"missing tensor {missing[0].key!r} of shape {list(missing[0].shape)}: "
            f"no file of {folder} has it{more}"
        )
    return list(table.values())


def _common_dtype(names: list[str]) -> str:
    """The smallest dtype that holds every tensor exactly."""
    return functools.reduce(lambda a, b: a if a == b else "float32", names)


def _cast(block: np.ndarray, dtype: str, tensor: StoredTensor) -> np.ndarray:
    if dtype != "float16" or block.dtype == np.float16:
        return block.astype(DTYPES[dtype], copy=False)
    with np.errstate(over="ignore"):
        cast = block.astype(np.float16)
    if (overflown := np.isinf(cast) & ~np.isinf(block)).any():
        raise CheckpointError(
            f"tensor {tensor.key!r} in {tensor.file.path} holds {float(block[overflown][0]):.6g}; "
            "float16 ends at 65504: choose bfloat16 or float32"
        )
    return cast
