"""Writes the parameters of a checkpoint through Orbax, a few at a time.

`v1.save` holds the whole tree, and more, in memory; `v1.partial.save` holds what it is given.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from flax.traverse_util import unflatten_dict
from orbax.checkpoint import v1 as orbax

from depcap_jax.checkpoints.fingerprint import fingerprint
from depcap_jax.checkpoints.small_files import files_under, sha256, write_json
from depcap_jax.checkpoints.storage import MANIFEST, PARAMS, VERSION, is_chunk, manifest_hash
from depcap_jax.models import ModelConfig

# Small parameters go together in one call of Orbax, which costs 20 to 40 ms however little it moves.
_GROUP_BYTES = 64 << 20

# Above 32 MB the C library gives a buffer back to the system as soon as it is freed.
_CHUNK_BYTES = 64 << 20


class ParameterWriter:
    """Writes the parameters and the manifest of a checkpoint into a folder, one parameter at a time.

    The folder is a checkpoint only after `finish`, which comes after all its other files.
    """

    def __init__(self, folder: Path, config: ModelConfig, dtype: str):
        self._folder = folder.absolute()
        self._config = config
        self._dtype = dtype
        self._fingerprints: dict[str, int] = {}
        self._waiting: dict[str, np.ndarray] = {}

    def add(self, leaf: str, values: np.ndarray) -> None:
        """Takes one parameter, which must not change afterwards; it is written now or with the next ones."""
        self._fingerprints[leaf] = fingerprint(values)
        self._waiting[leaf] = values
        if sum(array.nbytes for array in self._waiting.values()) >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        """Writes what is left, and the manifest, which knows every file that is there."""
        self._flush()
        with _quiet_orbax():
            orbax.partial.finalize(str(self._folder / PARAMS))
        files = {path.relative_to(self._folder): path for path in sorted(files_under(self._folder))}
        manifest = {
            "version": VERSION,
            "dtype": self._dtype,
            "config": self._config.to_dict(),
            "fingerprints": self._fingerprints,
            "files": {
                str(name): sha256(path)
                for name, path in files.items()
                if path.is_file() and not is_chunk(name)
            },
        }
        write_json(self._folder / MANIFEST, {**manifest, "sha256": manifest_hash(manifest)})

    def _flush(self) -> None:
        if self._waiting:
            _reserve(self._folder, [array.nbytes for array in self._waiting.values()])
            with _quiet_orbax(), _orbax_context():
                orbax.partial.save(str(self._folder / PARAMS), unflatten_dict(self._waiting, sep="."))
        self._waiting = {}
        _return_freed_memory()


def _reserve(folder: Path, sizes: list[int]) -> None:
    """Raises OSError if the disk has no room for arrays of these sizes, in files no larger than a chunk.

    Asking first costs next to nothing; a write that fails within Orbax prints hundreds of lines from
    threads that outlive it.
    """
    largest = min(max(sizes), _CHUNK_BYTES)
    headers = 16_384 * len(sizes) + 65_536  # and what disks round up
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for number in range(math.ceil((sum(sizes) + headers) / largest)):
            with (Path(scratch) / str(number)).open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, largest)


def _orbax_context() -> orbax.Context:
    context = orbax.Context()
    saving = context.array.saving
    # Weights are nearly random bits: compressing them costs more time than it saves in bytes.
    saving.use_compression = False
    # A file a chunk. Orbax's database of chunks (OCDBT) encodes a whole array before it writes any of it:
    # for the output head in bfloat16 (1.04 GB) that took 1.02 GB more memory, files 0.48 to 0.64 GB (three
    # runs each). For the embedding, whose chunks are contiguous, neither takes any.
    saving.use_ocdbt = False
    # Orbax cuts the longer axis, which in all our matrices is the one that a mesh splits, so that a
    # device reads little more than its own part.
    saving.storage_options.chunk_byte_size = _CHUNK_BYTES
    context.memory.deepcopy_host_arrays = False
    return context


@contextlib.contextmanager
def _quiet_orbax() -> Iterator[None]:
    """Silences what Orbax logs about every save without OCDBT."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _return_freed_memory() -> None:
    """Hands freed buffers back to the system, where its C library would keep up to a gigabyte of them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
