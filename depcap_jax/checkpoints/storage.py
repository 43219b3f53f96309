"""The folder of a converted checkpoint: how it is laid out and how it is read.

    checkpoint.json   the model's config, the weights' dtype, a fingerprint a parameter
    params/           the parameters, as Orbax writes them: nested by the parts of their dotted names
    tokenizer/        the tokenizer's files, as they came
    source.json       from what it was made: file names, sizes and hashes; the published config

`depcap_jax.checkpoints.writer` writes it; here it is read, so that memory follows the largest parameter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tensorstore as ts
from jax.sharding import Sharding
from jax.typing import DTypeLike

from depcap_jax.checkpoints.errors import CheckpointConfigError, CheckpointError
from depcap_jax.checkpoints.fingerprint import fingerprint_array
from depcap_jax.models import ConfigError, ModelConfig
from depcap_jax.models.parameters import leaf_shapes
from depcap_jax.models.sharding import place

MANIFEST = "checkpoint.json"
PARAMS = "params"
TOKENIZER = "tokenizer"
SOURCE = "source.json"

DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
"""The dtypes that weights may have."""

VERSION = 1


def dtype_name(dtype: DTypeLike) -> str:
    """The name of one of the dtypes that weights may have; raises `CheckpointError` for others."""
    try:
        name = jnp.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPES:
        raise CheckpointError(f"dtype must be one of {', '.join(DTYPES)}, got {name!r}")
    return name


def common_dtype(names: Iterable[str]) -> str:
    """The smallest of `DTYPES` that holds arrays of all these dtypes exactly."""
    return functools.reduce(lambda a, b: a if a == b else "float32", names)


def cast_values(values: np.ndarray, dtype: str, what: str) -> np.ndarray:
    """Casts; raises `CheckpointError`, naming `what`, if a number is too large for float16."""
    if dtype != "float16" or values.dtype == np.float16:
        return values.astype(DTYPES[dtype], copy=False)
    with np.errstate(over="ignore"):
        cast = values.astype(np.float16)
    if (overflown := np.isinf(cast) & ~np.isinf(values)).any():
        raise CheckpointError(
            f"{what} holds {float(values[overflown][0]):.6g}; "
            "float16 ends at 65504: choose bfloat16 or float32"
        )
    return cast


def is_stored(folder: Path) -> bool:
    """True if the folder holds a converted checkpoint."""
    return (folder / MANIFEST).is_file()


def check_target(target: Path, *, overwrite: bool) -> Path:
    """Where a checkpoint at `target` will really lie.

    Raises:
      CheckpointError: if something is there, unless it is an empty folder, or a checkpoint and `overwrite`.
    """
    taken = os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir()))
    if taken and not overwrite:
        raise CheckpointError(f"target {target} exists; choose another place or ask to overwrite it")
    if taken and not is_stored(target):
        raise CheckpointError(f"target {target} is no converted checkpoint; it will not be overwritten")
    return target.resolve()


class StoredCheckpoint:
    """A converted checkpoint: its manifest read and checked, its parameters still on disk."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.tokenizer_folder = folder / TOKENIZER
        manifest = _read_manifest(folder)
        self.dtype: str = manifest["dtype"]
        self._fingerprints: Mapping[str, int] = manifest["fingerprints"]
        try:
            self.config = ModelConfig.from_dict(manifest["config"])
        except (ConfigError, TypeError) as error:
            raise CheckpointConfigError(f"{folder / MANIFEST}: {error}") from None
        self._parameters = self._open_parameters()
        self._check_shapes()

    @property
    def leaves(self) -> list[str]:
        """The dotted names of the parameters, in the model's order."""
        return list(leaf_shapes(self.config))

    def read_arrays(self, dtype: str, sharding_of: Callable[[str], Sharding]) -> dict[str, jax.Array]:
        """Every parameter, its fingerprint checked, cast, on its devices."""
        return {
            leaf: _cast(self.read_stored(leaf, sharding_of(leaf)), dtype, leaf, self.folder)
            for leaf in self.leaves
        }

    def read_stored(self, leaf: str, sharding: Sharding) -> jax.Array:
        """One parameter as it is stored, its fingerprint checked; each device's part is read by itself."""
        with self._read_errors(leaf):
            store = self._parameters[leaf]
            array = place(tuple(store.shape), sharding, lambda index: store[index].read().result())
        if fingerprint_array(array) != self._fingerprints.get(leaf):
            raise CheckpointError(
                f"{self.folder / PARAMS} is damaged: parameter {leaf!r} is not what was written "
                "(its fingerprint differs); convert the checkpoint again"
            )
        return array

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
                opened[leaf] = ts.open({**spec, "fill_missing_data_reads": False}, open=True).result()
        return opened

    @contextlib.contextmanager
    def _read_errors(self, leaf: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, OSError) as error:  # tensorstore has no kind of its own
            reason = str(error).strip().split("\n", 1)[0].split(" [source locations", 1)[0]
            raise CheckpointError(
                f"{self.folder / PARAMS} is damaged: parameter {leaf!r}: {reason}"
            ) from error

    def _check_shapes(self) -> None:
        where = self.folder / PARAMS
        expected = leaf_shapes(self.config)
        for leaf in sorted(self._parameters.keys() - expected.keys()):
            raise CheckpointError(f"{where} has a parameter {leaf!r} that the config in {MANIFEST} does not")
        for leaf, shape in expected.items():
            if leaf not in self._parameters:
                raise CheckpointError(f"{where} lacks parameter {leaf!r}, which the config in {MANIFEST} has")
            store = self._parameters[leaf]
            if (store.shape, store.dtype.numpy_dtype) != (shape, DTYPES[self.dtype]):
                raise CheckpointError(
                    f"{where} has parameter {leaf!r} as {store.dtype.name} {list(store.shape)}; "
                    f"{MANIFEST} makes it {self.dtype} {list(shape)}"
                )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON for people to read."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object; raises `CheckpointError` if the file holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # covers broken JSON and broken UTF-8
        raise CheckpointError(f"{path} is damaged, not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}; an object is expected")
    return content


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = read_json(path)
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{path} has version {manifest.get('version')!r}; this library reads {VERSION}")
    if manifest.get("dtype") not in DTYPES:
        raise CheckpointError(f"{path} has dtype {manifest.get('dtype')!r}; allowed: {', '.join(DTYPES)}")
    for name in ("config", "fingerprints"):
        if not isinstance(manifest.get(name), dict):
            raise CheckpointError(f"{path} lacks the object {name!r}")
    return manifest


def _cast(array: jax.Array, dtype: str, leaf: str, folder: Path) -> jax.Array:
    if array.dtype == DTYPES[dtype]:
        return array
    cast = array.astype(DTYPES[dtype])
    if dtype == "float16" and bool(jnp.any(jnp.isinf(cast) & ~jnp.isinf(array))):
        raise CheckpointError(
            f"parameter {leaf!r} of {folder} reaches {float(jnp.max(jnp.abs(array))):.6g}; "
            "float16 ends at 65504: choose bfloat16 or float32"
        )
    return cast
