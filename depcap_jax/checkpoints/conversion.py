"""From a Hugging Face folder to a converted checkpoint, one parameter at a time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import math
import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.checkpoints.dtypes import DTYPES, dtype_name, with_bits
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.hub import Location, locate
from depcap_jax.checkpoints.huggingface.config_json import CONFIG
from depcap_jax.checkpoints.huggingface.source import HuggingFaceSource
from depcap_jax.checkpoints.publish import check_target, published_folder, write_errors
from depcap_jax.checkpoints.small_files import has_file, read_json, write_json
from depcap_jax.checkpoints.storage import KIND, MANIFEST, SOURCE, TOKENIZER, StoredCheckpoint
from depcap_jax.checkpoints.tokenizer import TOKENIZER_FILES, copy_tokenizer_files, has_vocabulary
from depcap_jax.checkpoints.writer import ParameterWriter
from depcap_jax.models import ModelConfig
from depcap_jax.models.parameters import leaf_dtypes, leaf_shapes, quantize_leaf
from depcap_jax.models.quantization import Bits

Progress = Callable[[str, int, int], None]
"""Told what is being done, the bytes done so far, and the bytes in all."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a conversion did."""

    tensors: int
    parameters: int
    dtype: str
    quantize: Bits | None
    bytes_read: int
    """Size of the tensors in the source."""
    bytes_written: int
    """Size of the tensors in the target."""
    seconds: float
    peak_memory: int
    """Largest resident size of this process so far, in bytes."""
    verified: bool
    warnings: tuple[str, ...]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    quantize: Bits | None = None,
    adapter: str | os.PathLike[str] | None = None,
    mask_token_id: int | None = None,
    predicts_next: bool | None = None,
    overwrite: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Converts a Hugging Face folder or repository into a checkpoint that appears complete or not at all.

    Args:
      source: a folder with `config.json` and weights; see `huggingface.files` for their names. Or ORG/NAME or
        ORG/NAME@REVISION on the hub.
      target: the folder to make.
      dtype: float32, bfloat16 or float16; None keeps that of the source (of a mixed one, float32).
      quantize: "int8" or "int4", as for `load`: the matrices are stored in so many bits.
      adapter: as for `load`; `mask_token_id` and `predicts_next` too.
      overwrite: replaces a checkpoint at `target`, at the end and in one step.
      verify: reads everything back before the target appears, and compares it with the source bit by bit.
      progress: called after each tensor.

    Raises:
      CheckpointError: if the source is not whole and well-formed, or the target cannot be written;
        the message is one line.
    """
    started = time.monotonic()
    dtype = None if dtype is None else dtype_name(dtype)
    here = Path(source) if os.path.exists(source) else None
    place = check_target(Path(target), overwrite=overwrite, kind=KIND, marker=MANIFEST, source=here)
    located = locate(source)
    weights = HuggingFaceSource(
        located.folder,
        adapter=adapter,
        repository=located.repository,
        mask_token_id=mask_token_id,
        predicts_next=predicts_next,
    )
    dtype = dtype or weights.dtype
    parameters = sum(math.prod(weights.shape(leaf)) for leaf in weights.leaves)
    config = with_bits(weights.config, quantize)
    shapes = leaf_shapes(config)
    bytes_written = sum(
        math.prod(shapes[leaf]) * kind.itemsize for leaf, kind in leaf_dtypes(config, DTYPES[dtype]).items()
    )
    tell = progress or (lambda *_: None)
    tokenizer_files = (weights.folder / name for name in TOKENIZER_FILES)
    with (
        published_folder(place, replace=overwrite) as work,
        _hashes([*filter(has_file, tokenizer_files), *weights.files]) as hashes,
        _hashes([] if weights.adapter is None else weights.adapter.files) as adapter_hashes,
    ):
        free = shutil.disk_usage(work).free
        if free < bytes_written:
            raise CheckpointError(
                f"the disk of {place.parent} is too full: {bytes_written:,} bytes are needed, "
                f"{free:,} are free"
            )
        writer = ParameterWriter(work, config, dtype)
        for leaf in _each_leaf(weights, "converting", tell):
            parts = _parts(weights, leaf, config, dtype)
            with write_errors(work):
                for name, values in parts.items():
                    writer.add(name, values)
            del parts  # before the next one is read
        with write_errors(work):
            warnings = _copy_tokenizer(located.folder, work)
            origin = _origin(located, hashes(), read_json(located.folder / CONFIG))
            if weights.adapter is not None:
                merged = weights.adapter
                origin["adapter"] = _origin(merged.location, adapter_hashes(), merged.config)
            write_json(work / SOURCE, origin)
            writer.finish()
        if verify:
            _verify(weights, work, tell)
    return Report(
        tensors=len(weights.leaves),
        parameters=parameters,
        dtype=dtype,
        quantize=quantize,
        bytes_read=sum(map(weights.nbytes, weights.leaves)),
        bytes_written=bytes_written,
        seconds=time.monotonic() - started,
        peak_memory=_peak_memory(),
        verified=verify,
        warnings=warnings,
    )


def _origin(located: Location, files: list[dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    return {**located._asdict(), "folder": located.folder.resolve().name, "files": files, "config": config}


def _each_leaf(weights: HuggingFaceSource, phase: str, tell: Progress) -> Iterator[str]:
    """The parameters' names; tells how far the caller is whenever it comes for the next."""
    total = sum(map(weights.nbytes, weights.leaves))
    done = 0
    tell(phase, 0, total)
    for leaf in weights.leaves:
        yield leaf
        done += weights.nbytes(leaf)
        tell(phase, done, total)


def _parts(weights: HuggingFaceSource, leaf: str, config: ModelConfig, dtype: str) -> dict[str, np.ndarray]:
    """What a parameter of the source becomes in the target: itself; or its values and scales, in few bits."""
    values = weights.read(leaf, dtype)
    if config.quantize is None:
        return {leaf: values}
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        parts = quantize_leaf(leaf, jnp.asarray(values), config.quantize)
    return {name: np.asarray(part) for name, part in parts.items()}


def _copy_tokenizer(source: Path, work: Path) -> tuple[str, ...]:
    folder = work / TOKENIZER
    folder.mkdir()
    copy_tokenizer_files(source, folder)
    if has_vocabulary(folder):
        return ()
    return (
        f"{source} has no tokenizer: neither tokenizer.json nor vocab.json with merges.txt; "
        "the model will take token ids only",
    )


@contextlib.contextmanager
def _hashes(files: list[Path]) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Hashes files on a second thread while the caller converts them; calling what it yields waits."""
    stop = threading.Event()

    def describe(path: Path) -> dict[str, Any]:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while not stop.is_set() and (block := file.read(1 << 20)):
                digest.update(block)
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest()}

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        futures = [pool.submit(describe, path) for path in files]
        try:
            yield lambda: [future.result() for future in futures]
        finally:
            stop.set()


def _verify(weights: HuggingFaceSource, work: Path, tell: Progress) -> None:
    stored = StoredCheckpoint(work)
    for leaf in _each_leaf(weights, "verifying", tell):
        if not _reads_back(weights, stored, leaf):
            raise CheckpointError(f"parameter {leaf!r} reads back from {work} other than in the source")


def _reads_back(weights: HuggingFaceSource, stored: StoredCheckpoint, leaf: str) -> bool:
    if stored.config.quantize is not None:
        parts = _parts(weights, leaf, stored.config, stored.dtype).items()
        return all(np.array_equal(_bits(stored.read_on_host(name)), _bits(part)) for name, part in parts)
    values = stored.read_on_host(leaf)
    blocks = weights.blocks(leaf, stored.dtype)
    return all(np.array_equal(_bits(values[where]), _bits(block)) for where, block in blocks)


def _bits(values: np.ndarray) -> np.ndarray:
    """Bit patterns, so that a NaN equals itself and zeros keep their sign."""
    return values.view(f"u{values.dtype.itemsize}")


def _peak_memory() -> int:
    # On Linux getrusage would count what the parent process had when it started this one.
    with contextlib.suppress(OSError, IndexError):
        return int(Path("/proc/self/status").read_text(errors="replace").split("VmHWM:")[1].split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
