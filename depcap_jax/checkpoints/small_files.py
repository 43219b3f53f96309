"""JSON objects in files: one reader, whose errors name the file, and one writer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from depcap_jax.checkpoints.errors import CheckpointError


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

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_duplicates)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"no such file: {path}") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # covers broken JSON and broken UTF-8
        raise CheckpointError(f"{path} is damaged, not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}; an object is expected")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Writes an object for people to read."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
