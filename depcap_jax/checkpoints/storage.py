"""The folder of a converted checkpoint: how it is laid out and how it is read.

    checkpoint.json   the model's config, the weights' dtype, a fingerprint per parameter, a hash per other
                      file, and a hash of all this
    params/           the parameters, as Orbax writes them: nested by the parts of their dotted names
    tokenizer/        the tokenizer's files, as they came
    source.json       from what it was made: file names, sizes and hashes; the published config

`depcap_jax.checkpoints.writer` writes it; here it is read, so that memory follows the largest parameter.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import Sharding, SingleDeviceSharding

from depcap_jax.checkpoints.dtypes import DTYPES, cast_values
from depcap_jax.checkpoints.errors import CheckpointConfigError, CheckpointError, first_line
from depcap_jax.checkpoints.fingerprint import fingerprint_array
from depcap_jax.checkpoints.small_files import files_under, has_file, read_json, sha256
from depcap_jax.models import ConfigError, ModelConfig
from depcap_jax.models.parameters import dequantize_leaf, leaf_dtypes, leaf_shapes
from depcap_jax.models.quantization import SCALE
from depcap_jax.models.sharding import place

KIND = "converted checkpoint"
MANIFEST = "checkpoint.json"
PARAMS = "params"
TOKENIZER = "tokenizer"
SOURCE = "source.json"

VERSION = 2


def is_stored(folder: Path) -> bool:
    """True if the folder holds a converted checkpoint."""
    return has_file(folder / MANIFEST)


def manifest_hash(manifest: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest's values, without its own hash, however the file is laid out."""
    values = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def is_chunk(name: PurePath) -> bool:
    """True of a file, named from the checkpoint's folder, that holds numbers of a parameter."""
    return name.parts[0] == PARAMS and "c" in name.parts


class StoredCheckpoint:
    """A converted checkpoint: its manifest read and checked, its parameters still on disk.

    Args:
      folder: what was converted or saved.
      hints: fields of the config that are not None take the place of the manifest's.
    """

    def __init__(self, folder: Path, **hints: Any):
        self.folder = folder
        self.tokenizer_folder = folder / TOKENIZER
        manifest = _read_manifest(folder)
        self.dtype: str = manifest["dtype"]
        self._fingerprints: Mapping[str, int] = manifest["fingerprints"]
        try:
            instead = {name: value for name, value in hints.items() if value is not None}
            self.config = ModelConfig.from_dict({**manifest["config"], **instead})
        except ConfigError as error:
            raise CheckpointConfigError(f"{folder / MANIFEST}: {error}") from None
        self._check_files(manifest["files"])
        self._parameters = self._open_parameters()
        self._check_shapes()

    @property
    def leaves(self) -> list[str]:
        """The dotted names of the parameters, in the model's order."""
        return list(leaf_shapes(self.config))

    def read_array(self, leaf: str, dtype: str, sharding: Sharding) -> jax.Array:
        """A parameter on its devices, its fingerprint checked, cast unless it is kept in few bits."""
        return cast_values(self._read(leaf, sharding), dtype, f"parameter {leaf!r} of {self.folder}")

    def read_on_host(self, leaf: str) -> np.ndarray:
        """One parameter as it is stored, its fingerprint checked."""
        return np.asarray(self._read(leaf, _host()))

    def read_in_full(self, leaf: str) -> np.ndarray:
        """The same in the checkpoint's dtype, also if it is kept in few bits."""
        parts = {name: self._read(name, _host()) for name in (leaf, leaf + SCALE) if name in self._parameters}
        return np.asarray(dequantize_leaf(leaf, parts))

    def _read(self, leaf: str, sharding: Sharding) -> jax.Array:
        """One parameter as it is stored, its fingerprint checked; each device's part is read by itself."""
        with self._read_errors(leaf):
            store = self._parameters[leaf]
            array = place(tuple(store.shape), sharding, lambda index: store[index].read().result())
        if fingerprint_array(array) != self._fingerprints.get(leaf):
            what = f"parameter {leaf!r} is not what was written (its fingerprint differs)"
            raise _damaged(self.folder / PARAMS, what)
        return array

    def _check_files(self, hashes: Mapping[str, str]) -> None:
        """Raises `CheckpointError` unless all files are there, as they were written, and no others."""
        for name, expected in hashes.items():
            path = self.folder / name
            if not has_file(path):
                raise CheckpointError(f"{self.folder} lacks {name}; convert the checkpoint again")
            if sha256(path) != expected:
                raise _damaged(path, "it is not what was written (its SHA-256 differs)")
        for path in (path for part in (PARAMS, TOKENIZER) for path in files_under(self.folder / part)):
            name = path.relative_to(self.folder)
            if not (is_chunk(name) or str(name) in hashes):
                raise CheckpointError(
                    f"{path} was not written with the checkpoint; remove it, or convert with it in the source"
                )

    def _open_parameters(self) -> dict[str, ts.TensorStore]:
        """Every parameter that Orbax wrote, opened but not read.

        They are read as what they are, zarr arrays in folders, rather than through Orbax: its errors do
        not say which parameter is broken, and its restore has all parts of one on the host at once.
        """
        where = self.folder.absolute() / PARAMS
        opened = {}
        for header in sorted(where.glob("*/*/zarr.json")):
            leaf = header.parent.name
            with self._read_errors(leaf):
                spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{header.parent}/"}}
                # A chunk that is not there is damage, not zeros.
                store = ts.open({**spec, "fill_missing_data_reads": False}, open=True).result()
            opened[leaf] = store
            for chunk in files_under(header.parent / "c"):
                # What is no file would be waited for, and the room for what is too large asked for.
                has_file(chunk, store.size * store.dtype.numpy_dtype.itemsize + 4096)
        return opened

    @contextlib.contextmanager
    def _read_errors(self, leaf: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:  # tensorstore has no kind of its own
            reason = first_line(error).split(" [source locations", 1)[0]
            raise _damaged(self.folder / PARAMS, f"parameter {leaf!r}: {reason}") from error

    def _check_shapes(self) -> None:
        where = self.folder / PARAMS
        if self.config.num_layers > len(self._parameters):  # before so many are built
            layers = f"{MANIFEST} has {self.config.num_layers} layers"
            raise CheckpointError(f"{layers}, but {where} only {len(self._parameters)} parameters")
        expected, dtypes = leaf_shapes(self.config), leaf_dtypes(self.config, DTYPES[self.dtype])
        for leaf in sorted(self._parameters.keys() - expected.keys()):
            raise CheckpointError(f"{where} has a parameter {leaf!r} that the config in {MANIFEST} does not")
        for leaf, shape in expected.items():
            if leaf not in self._parameters:
                raise CheckpointError(f"{where} lacks parameter {leaf!r}, which the config in {MANIFEST} has")
            store = self._parameters[leaf]
            if (store.shape, store.dtype.numpy_dtype) != (shape, dtypes[leaf]):
                raise CheckpointError(
                    f"{where} has parameter {leaf!r} as {store.dtype.name} {list(store.shape)}; "
                    f"{MANIFEST} makes it {dtypes[leaf]} {list(shape)}"
                )


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {what}; convert the checkpoint again")


def _host() -> Sharding:
    return SingleDeviceSharding(jax.local_devices(backend="cpu")[0])


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = read_json(path)
    if manifest.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {manifest.get('version')!r}; this library reads {VERSION}: "
            "convert the checkpoint again"
        )
    if manifest.get("sha256") != manifest_hash(manifest):
        raise _damaged(path, "it is not what was written (its SHA-256 differs)")
    if manifest.get("dtype") not in list(DTYPES):
        raise CheckpointError(f"{path} has dtype {manifest.get('dtype')!r}; allowed: {', '.join(DTYPES)}")
    for name in ("config", "fingerprints", "files"):
        if not isinstance(manifest.get(name), dict):
            raise CheckpointError(f"{path} lacks the object {name!r}")
    return manifest
