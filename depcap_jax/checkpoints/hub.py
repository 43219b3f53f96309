"""Models by their names on the Hugging Face hub, ORG/NAME or ORG/NAME@REVISION.

`huggingface_hub` does the work: its cache, its progress bars, its tokens, downloads that go on where they
were cut off. Here is which files of a repository are wanted, and what its errors mean.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from depcap_jax.checkpoints.errors import CheckpointError, first_line
from depcap_jax.checkpoints.tokenizer import TOKENIZER_FILES

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"(?P<name>{_PART}/{_PART})(@(?P<revision>[A-Za-z0-9_./-]+))?")

_DESCRIPTION = ("config.json", *TOKENIZER_FILES)
# The same weights are often there twice; the second form is fetched where the first is missing.
_SAFETENSORS = ("model*.safetensors", "model.safetensors.index.json")
_ARCHIVES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")


class Location(NamedTuple):
    """Where a checkpoint lies, and where on the hub it is from."""

    folder: Path
    repository: str | None = None
    commit: str | None = None


def locate(
    path: str | os.PathLike[str], *, weights: bool = True, files: tuple[str, ...] | None = None
) -> Location:
    """The folder at `path`, or else the files of the repository that it names, from the cache or the network.

    Args:
      path: a folder; or, as a string, ORG/NAME or ORG/NAME@REVISION.
      weights: False fetches config.json and the tokenizer's files alone.
      files: fetches these alone, whatever `weights` says.

    Raises:
      CheckpointError: if there is neither, or the download fails.
    """
    folder = Path(path)
    if folder.is_dir():
        return Location(folder)
    if folder.exists():
        raise CheckpointError(f"{folder} is a file; the folder that holds a checkpoint is expected")
    named = _NAME.fullmatch(path) if isinstance(path, str) else None
    if named is None:
        raise CheckpointError(
            f"no such folder: {folder}; expected is a checkpoint's folder, an embedded model's name "
            "(tiny-llada, tiny-dream), or ORG/NAME or ORG/NAME@REVISION on the Hugging Face hub"
        )
    name, revision = named["name"], named["revision"]
    with _explained(name, revision):
        patterns = files or ((*_DESCRIPTION, *_SAFETENSORS) if weights else _DESCRIPTION)
        folder = _fetch(name, revision, patterns)
        if weights and files is None and not any(any(folder.glob(pattern)) for pattern in _SAFETENSORS):
            folder = _fetch(name, revision, (*_DESCRIPTION, *_ARCHIVES))
    return Location(folder, name, folder.name)


def _fetch(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import errors, snapshot_download

    download = functools.partial(snapshot_download, name, revision=revision, allow_patterns=list(patterns))
    try:
        return Path(download())
    except (OSError, ValueError):  # the client has looked into its cache
        raise
    except Exception as error:  # a connection that broke: it has not
        try:
            return Path(download(local_files_only=True))
        except errors.LocalEntryNotFoundError:
            raise error from None


@contextlib.contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """Says in a sentence what the hub's client raises."""
    from huggingface_hub import constants, errors

    where = f"{constants.ENDPOINT}/{name}"
    try:
        yield
    except errors.GatedRepoError:
        reason = f"it is gated: accept its terms at {where}, then `hf auth login`, or set HF_TOKEN"
    except errors.RepositoryNotFoundError:
        reason = (
            f"there is no folder of that name and no such repository at {where}; "
            "if it is private: `hf auth login`, or set HF_TOKEN"
        )
    except errors.RevisionNotFoundError:
        reason = f"it has no revision {revision!r}"
    except errors.LocalEntryNotFoundError:
        reason = (
            f"there is no folder of that name, it is not whole in {constants.HF_HUB_CACHE}, and "
            f"{constants.ENDPOINT} cannot be reached"
        )
    except OSError as error:
        full = f"the disk of {constants.HF_HUB_CACHE} is full; HF_HOME names another place"
        reason = full if error.errno == errno.ENOSPC else f"{first_line(error)} (what has arrived is kept)"
    except CheckpointError:
        raise
    except Exception as error:  # the client's network library has a tree of its own
        broken = first_line(error) or type(error).__name__
        reason = f"{constants.ENDPOINT} cannot be reached: {broken} (what has arrived is kept)"
    else:
        return
    raise CheckpointError(f"{name} could not be fetched: {reason}")
