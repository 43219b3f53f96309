"""Folders that appear whole or not at all: written beside their place, then renamed into it.

The folder in the making is locked, and the system drops the lock of a killed process, so that the next
run can tell what a killed one left behind from what another is still writing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from depcap_jax.checkpoints.errors import CheckpointError, first_line

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def check_target(
    target: Path, *, overwrite: bool, kind: str, marker: str, source: Path | None = None
) -> Path:
    """Where a folder at `target` will really lie; one of this `kind` has a file `marker`.

    Raises:
      CheckpointError: if `target` is or holds the source; or if something is there, unless it is an
        empty folder, or one that may be replaced.
    """
    place = target.resolve()
    if source is not None and place in (source.resolve(), *source.resolve().parents):
        raise CheckpointError(f"target {target} is, or holds, the source {source}; choose another place")
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return place
    if not overwrite:
        raise CheckpointError(f"target {target} exists; choose another place or ask to overwrite it")
    if not (target / marker).is_file():
        raise CheckpointError(f"target {target} is no {kind}; it will not be overwritten")
    return place


@contextlib.contextmanager
def published_folder(target: Path, *, replace: bool) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `target` when the block ends without an error.

    On an error, or an interrupt, nothing changes at `target` and nothing is left beside it. A kill leaves
    `target` alone too; what it leaves beside it, the next call for the same target removes.

    Raises:
      CheckpointError: if `target` exists and may not be replaced, or cannot be written.
    """
    missing = [path for path in target.parents if not path.exists()]
    work = target.with_name(f"{_prefix(target)}{secrets.token_hex(4)}")
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(target)
            work.mkdir()
        except OSError as error:
            raise CheckpointError(f"cannot write in {target.parent}: {error.strerror}") from None
        with _locked(work):
            yield work
            _put_in_place(work, target, replace=replace)
    except BaseException:
        _remove(work)
        for folder in missing:
            with contextlib.suppress(OSError):  # somebody else put something in it
                folder.rmdir()
        raise


@contextlib.contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Turns whatever stops a write into a `CheckpointError` of one line."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # tensorstore reports a full disk as a ValueError, among others
        text = str(error)
        full = "No space left" in text or "quota exceeded" in text.lower()
        reason = "the disk is full" if full else first_line(error)
        raise CheckpointError(f"cannot write in {folder.parent}: {reason}") from error


def _prefix(target: Path) -> str:
    return f".{target.name}.unfinished-"


def _remove_stale(target: Path) -> None:
    prefix = _prefix(target)
    for path in target.parent.iterdir():
        if path.name.startswith(prefix) and path.is_dir() and not path.is_symlink():
            with contextlib.suppress(BlockingIOError), _locked(path):
                _remove(path)


def _remove(folder: Path) -> None:
    """Removes a folder as far as it can."""
    with contextlib.suppress(RecursionError):  # of folders in thousands of others
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock; raises BlockingIOError if another process has it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _put_in_place(work: Path, target: Path, *, replace: bool) -> None:
    if replace and target.exists():
        _exchange(work, target)
        _remove(work)  # now the old one
        return
    try:
        work.rename(target)  # fails, as it must, if a folder with something in it came into being meanwhile
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise CheckpointError(f"{target} came into being meanwhile; it was left as it is") from None
        raise CheckpointError(f"cannot rename to {target}: {error.strerror}") from None


def _exchange(work: Path, target: Path) -> None:
    """Swaps two folders in one step where the system can, so that there is a `target` at every instant."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(work), os.fsencode(target)
    if renameat2 and renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return
    # Elsewhere the old folder steps aside for an instant, under a name that says what it is.
    aside = target.with_name(f"{target.name}.replaced-{os.getpid()}")
    target.rename(aside)
    try:
        work.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    aside.rename(work)
