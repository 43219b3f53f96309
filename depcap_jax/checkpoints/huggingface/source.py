"""A Hugging Face checkpoint seen as the parameters of our model."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from depcap_jax.checkpoints.dtypes import DTYPES, cast_values, common_dtype
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.adapter import Adapter
from depcap_jax.checkpoints.huggingface.config_json import CONFIG, read_config
from depcap_jax.checkpoints.huggingface.files import StoredTensor, open_files
from depcap_jax.checkpoints.huggingface.keys import Entry, entries, head_key
from depcap_jax.checkpoints.huggingface.readers import Index
from depcap_jax.models import ModelConfig
from depcap_jax.models.sharding import place

# What is copied out of a mapped file at once.
_BYTES = 32 << 20

# Rows that are transposed at once. 403 MB of bfloat16 took 0.40 s with 256 and 1.1 s with 512: the
# columns that are being filled then no longer fit in the cache.
_ROWS = 256


class HuggingFaceSource:
    """The parameters of a Hugging Face folder, each read from its file when it is asked for.

    Opening one checks every name, shape and dtype against the config: `CheckpointError` names the
    tensor, its file and what was expected.

    Args:
      folder: with `config.json` and weights.
      adapter: of `Adapter`: a LoRA adapter that is added to the weights as they are read.
      settings: as for `read_config`.
    """

    def __init__(self, folder: Path, *, adapter: str | os.PathLike[str] | None = None, **settings: Any):
        self.folder = self.tokenizer_folder = folder
        self.config = read_config(folder, **settings)
        weight_files, tensors = open_files(folder)
        self.files = [folder / CONFIG, *weight_files]
        # Many tied checkpoints hold the embedding a second time, under the head's name.
        copy = tensors.pop(head_key(self.config), None) if self.config.tie_embeddings else None
        self._copies = {} if copy is None else {"embed": copy}
        table = _match(self.config, tensors, folder)
        self._parts = {entry.leaf: (entry, tensors[entry.key]) for entry in table}
        self.adapter = None if adapter is None else Adapter(adapter, table)
        self.dtype = common_dtype([tensor.info.dtype for _, tensor in self._parts.values()])

    @property
    def leaves(self) -> list[str]:
        """The dotted names of the parameters, in the order of the files: reading in it is sequential."""
        order = {path: position for position, path in enumerate(self.files)}
        return sorted(self._parts, key=lambda leaf: order[self._parts[leaf][1].file.path])

    def nbytes(self, leaf: str) -> int:
        """The bytes that a parameter takes in the files."""
        return self._parts[leaf][1].info.nbytes

    def shape(self, leaf: str) -> tuple[int, ...]:
        """The shape of a parameter as our model has it."""
        entry = self._parts[leaf][0]
        return entry.shape[::-1] if entry.transposed else entry.shape

    def read(self, leaf: str, dtype: str, index: Index | None = None) -> np.ndarray:
        """A parameter, or the part of it at `index`, contiguous and cast; raises what `blocks` raises."""
        index = self._known_ends(leaf, index)
        out = np.empty([part.stop - part.start for part in index], DTYPES[dtype])
        for where, block in self.blocks(leaf, dtype, index):
            out[where] = block
        return out

    def blocks(self, leaf: str, dtype: str, index: Index | None = None) -> Iterator[tuple[Index, np.ndarray]]:
        """The part of a parameter at `index` in pieces: where in the part each lies, and its numbers, cast.

        Raises:
          CheckpointError: if the file became unreadable, a number does not fit float16, or a second copy of
            the parameter differs.
        """
        entry, tensor = self._parts[leaf]
        index = self._known_ends(leaf, index)
        what = f"tensor {tensor.key!r} in {tensor.file.path}"
        first, *rest = index[::-1] if entry.transposed else index
        added = None if self.adapter is None else self.adapter.factors(leaf)
        # So many rows that a cut takes `_BYTES`, or one block.
        step = max(_ROWS, _BYTES * tensor.info.shape[0] // max(tensor.info.nbytes, 1))
        for start in range(first.start, first.stop, step):
            stop = min(start + step, first.stop)
            rows = tensor.file.read(tensor.key, (slice(start, stop), *rest))
            if leaf in self._copies:
                _compare(rows, tensor, self._copies[leaf], (slice(start, stop), *rest))
            for row in range(0, stop - start, _ROWS):
                block = rows[row : row + _ROWS]
                if added is not None:
                    left = added.left[start + row : start + row + len(block)]
                    block = block.astype(np.float32) + left @ added.right[:, rest[0]]
                block = cast_values(block, dtype, what)
                begin = start - first.start + row
                where = slice(begin, begin + len(block))
                yield ((slice(None), where), block.T) if entry.transposed else ((where,), block)

    def read_array(self, leaf: str, dtype: str, sharding: Sharding) -> jax.Array:
        """A parameter on its devices; each device's part is read from the file by itself."""
        return place(self.shape(leaf), sharding, functools.partial(self.read, leaf, dtype))

    def _known_ends(self, leaf: str, index: Index | None) -> Index:
        shape = self.shape(leaf)
        index = (slice(None),) * len(shape) if index is None else index
        return tuple(slice(*part.indices(size)) for part, size in zip(index, shape, strict=True))


def _match(config: ModelConfig, tensors: dict[str, StoredTensor], folder: Path) -> list[Entry]:
    if config.num_layers > len(tensors):  # before so many are built
        raise CheckpointError(
            f"the config.json of {folder} has {config.num_layers} layers; its files, {len(tensors)} tensors"
        )
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


def _compare(rows: np.ndarray, tensor: StoredTensor, copy: StoredTensor, index: Index) -> None:
    if copy.info != tensor.info or not np.array_equal(copy.file.read(copy.key, index), rows, equal_nan=True):
        raise CheckpointError(
            f"tensor {copy.key!r} in {copy.file.path} differs from {tensor.key!r}, but the config.json ties "
            "the head to the embedding; expected is an equal copy, or none"
        )
