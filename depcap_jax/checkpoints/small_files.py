"""Small files, regular and of bounded size whatever a folder holds, and the JSON objects in them."""

from __future__ import annotations

import hashlib
import json
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from depcap_jax.checkpoints.errors import CheckpointError

# Bytes; the tokenizers of the largest vocabularies have a fifth of it.
_LARGEST = 256 << 20

# Folders in each other; those of a parameter are six.
_DEEPEST = 32


def has_file(path: Path, largest: float = _LARGEST) -> bool:
    """True if there is a file, False if there is nothing.

    Raises:
      CheckpointError: if there is something else, such as a pipe, or a file of more than `largest` bytes.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link to nothing; a file is expected") from None
        return False
    except (OSError, ValueError) as error:  # the second for names that no file can have
        raise CheckpointError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path} is no regular file; one is expected")
    if status.st_size > largest:
        raise CheckpointError(f"{path} has {status.st_size:,} bytes; at most {largest:,} are expected")
    return True


def files_under(folder: Path) -> Iterator[Path]:
    """Whatever is below a folder and is no folder; links to folders are not followed.

    Raises:
      CheckpointError: if a folder cannot be read, or has too many others around it.
    """
    waiting = [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if depth > _DEEPEST:
            raise CheckpointError(
                f"folders in {folder} are nested too deeply: at most {_DEEPEST} are expected"
            )
        try:
            inside = sorted(place.iterdir()) if place.is_dir() else []
        except OSError as error:
            raise CheckpointError(f"{place} cannot be read: {error.strerror}") from None
        waiting += [(path, depth + 1) for path in reversed(inside) if path.is_dir() and not path.is_symlink()]
        yield from (path for path in inside if not path.is_dir())


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal digits; raises `CheckpointError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object.

    Raises:
      CheckpointError: if there is no such file, it is no JSON object, or a name stands twice in an object.
    """

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for name, count in Counter(name for name, _ in pairs).items():
            if count > 1:
                raise CheckpointError(f"duplicate name {name!r} in {path}; each is expected once")
        return dict(pairs)

    if not has_file(path):
        raise CheckpointError(f"no such file: {path}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_duplicates)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # covers broken JSON and broken UTF-8
        raise CheckpointError(f"{path} is damaged, not valid JSON: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{path} is damaged: its JSON is nested too deeply") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}; an object is expected")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object for people to read."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
