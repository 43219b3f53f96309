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
from typing import Any, Self

from depcap_jax.evaluation.provenance import fingerprint


class Records:
    """The records of one run, by problem, in memory."""

    def __init__(self) -> None:
        self.problems: dict[int, dict[str, Any]] = {}
        """What is known of each problem, by its index."""
        self.compile_seconds = 0.0
        """Time that compilations took, over all sessions of the run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds the records of some problems; each names its own with `index`."""
        for record in records:
            if record["index"] in self.problems:
                raise ValueError(f"problem {record['index']} is recorded already")
            self.problems[record["index"]] = dict(record)

    def add_compilation(self, seconds: float) -> None:
        """Adds the time of a compilation."""
        self.compile_seconds += seconds


class RecordFile(Records):
    """The same in a file, as it goes.

    Args:
      path: the file; made with its folder if it is not there.
      identity: all that makes this run this run, as JSON.

    Raises:
      ValueError: if the file belongs to another run or to none, or another process writes to it.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]):
        super().__init__()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} is not a file")
        identity = json.loads(json.dumps(identity))
        self._run = fingerprint(identity)
        self._file = path.open("a+b")
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(f"{path} is being written by another process") from None
            self._read(path, {"run": identity})
        except BaseException:
            self._file.close()
            raise

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds and appends the records of some problems."""
        added = list(records)
        super().add(added)
        self._write(*added)

    def add_compilation(self, seconds: float) -> None:
        """Adds and appends the time of a compilation."""
        super().add_compilation(seconds)
        self._write({"compile_seconds": seconds})

    def _read(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file.seek(0)
        content = self._file.read()
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
        self._file.truncate(len(content) - len(torn))
        if not lines:
            self._append(_seal(header, ""))
        for record in filter(None, records.values()):
            if "compile_seconds" in record:
                self.compile_seconds += record["compile_seconds"]
            else:
                self.problems.setdefault(record["index"], record)

    def _write(self, *records: Mapping[str, Any]) -> None:
        self._append(b"".join(_seal(record, self._run) for record in records))

    def _append(self, lines: bytes) -> None:
        self._file.write(lines)
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
