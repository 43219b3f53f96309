"""What is known of a run's problems; in a file, so that a killed run goes on.

The file has a line per problem, written as soon as it is decoded; its first line tells which run it is.
Problems are only ever appended, each once; a line that a kill cut off is dropped. Each line has a checksum: a
damaged one is told and does not count, the others do. The file is locked while a run writes to it.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Self

from depcap_jax.evaluation.provenance import fingerprint


class Records:
    """The records of one run, by problem; in a file as it goes, if one is named.

    Args:
      path: the file; made with its folder if it is not there.
      identity: all that makes this run this run; what goes into a file must be JSON.

    Raises:
      ValueError: if the file belongs to another run or to none, or another process writes to it.
    """

    problems: dict[int, dict[str, Any]]
    """What is known of each problem, by its index."""
    compile_seconds: float
    """Time that compilations took, over all sessions of the run."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]):
        self.problems, self.compile_seconds = {}, 0.0
        self._file, self._run = None, ""
        if path is None:
            return
        self._run = fingerprint(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a file")
        self._file = file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(file, path, {"run": json.loads(json.dumps(identity))})
        except BaseException as error:
            file.close()
            if isinstance(error, BlockingIOError):
                raise ValueError(f"{path} is being written by another process") from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds the records of some problems; each names its own with `index`."""
        lines = []
        for record in records:
            if record["index"] in self.problems:
                raise ValueError(f"problem {record['index']} is recorded already")
            self.problems[record["index"]] = dict(record)
            lines.append(_seal(record, self._run))
        self._append(*lines)

    def add_compilation(self, seconds: float) -> None:
        """Adds the time of a compilation."""
        self.compile_seconds += seconds
        self._append(_seal({"compile_seconds": seconds}, self._run))

    def _read(self, file: IO[bytes], path: Path, header: Mapping[str, Any]) -> None:
        file.seek(0)
        content = file.read()
        *lines, torn = content.split(b"\n")
        if lines and _unseal(lines[0], "") not in (None, header):
            raise ValueError(
                f"{path} belongs to a run with other settings; remove it, or name another folder"
            )
        records = {line: _unseal(line, self._run) for line in lines}  # a copied line says nothing new
        damaged = [
            str(number)
            for number, line in enumerate(lines, start=1)
            if records[line] is None and _unseal(line, "") != header
        ]
        if len(damaged) == len(lines) and not _seal(header, "").startswith(content):
            raise ValueError(f"{path} holds no record of a run; remove it, or name another folder")
        if damaged:
            warnings.warn(
                f"{path}: damaged, and decoded anew if it was a problem: line {', '.join(damaged)}",
                stacklevel=4,
            )
        file.truncate(len(content) - len(torn))
        if not lines:
            self._append(_seal(header, ""))
        for record in filter(None, records.values()):
            if "compile_seconds" in record:
                self.compile_seconds += record["compile_seconds"]
            else:
                self.problems.setdefault(record["index"], record)

    def _append(self, *lines: bytes) -> None:
        if self._file is not None:
            self._file.write(b"".join(lines))
            self._file.flush()
            os.fsync(self._file.fileno())


def _seal(record: Mapping[str, Any], run: str) -> bytes:
    """A line, with a checksum of what it says and of the run that it belongs to."""
    return json.dumps({**record, "check": fingerprint([run, record])}).encode() + b"\n"


def _unseal(line: bytes, run: str) -> dict[str, Any] | None:
    """What a line says; None if it is not what was written."""
    try:
        record = json.loads(line)
        return record if record.pop("check") == fingerprint([run, record]) else None
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        return None


def publish_text(path: Path, text: str) -> None:
    """Writes a file that appears whole or not at all, and replaces the one that was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, work = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(work, 0o644)  # mkstemp makes it private
        os.replace(work, path)
    except BaseException:
        os.unlink(work)
        raise
