"""Record files damaged at random: what is read was written, whole lines are kept, nothing hangs or crashes.

`DEPCAP_FUZZ=20000 pytest FILE` tries that many damages in place of the few of the quick tests.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings, strategies as st

from depcap_jax.evaluation.records import Records

RUN = {"task": "tiny", "seed": 0}
PROBLEMS = [
    {"index": index, "answer": f"It is {index}\n\u2028 \ud800.", "right": index % 2, "seconds": index / 7}
    for index in range(4)
]
COMPILED = [1.5, 0.25]

RECORDS: list[dict[str, Any]] = [
    {"run": RUN},
    {"compile_seconds": COMPILED[0]},
    *PROBLEMS[:2],
    {"compile_seconds": COMPILED[1]},
    *PROBLEMS[2:],
]

Damage = Callable[[bytes], bytes]


def whole_file() -> bytes:
    """The file of a run of two sessions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        for seconds, problems in zip(COMPILED, (PROBLEMS[:2], PROBLEMS[2:]), strict=True):
            with Records(path, RUN) as records:
                records.add_compilation(seconds)
                records.add(problems)
        return path.read_bytes()


WHOLE = whole_file()
LINES = WHOLE.split(b"\n")[:-1]


def meaning(line: bytes) -> str:
    """What a line says, however it is spaced."""
    try:
        return json.dumps(json.loads(line))
    except (ValueError, RecursionError):
        return ""


MEANINGS = {*map(meaning, LINES)}

places = st.integers(0, len(WHOLE))
numbers = st.sampled_from(["1" * 5000, "1e999", "-1e-999", "NaN", "0." + "9" * 5000, "-0"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["index", "check"]), inner),
)
foreign = st.one_of(
    st.binary(max_size=60),
    values.map(lambda value: json.dumps(value).encode()),
    numbers.map(lambda number: f'{{"index": {number}, "compile_seconds": {number}}}'.encode()),
    st.sampled_from([b"[", b'{"check":', b'[{"index":']).map(lambda start: start * 50_000),
    st.sampled_from([b"\xff\xfe{\x00", b"\xef\xbb\xbf{}", bytes(4), b'{"index": 1}', b'{"check": 0}']),
)


def flip(place: int, bits: int) -> Damage:
    def change(content: bytes) -> bytes:
        flipped = bytes(byte ^ bits for byte in content[place : place + 1])
        return content[:place] + flipped + content[place + 1 :]

    return change


def cut(place: int, length: int) -> Damage:
    return lambda content: content[:place] + content[place + length :]


def insert(place: int, added: bytes) -> Damage:
    return lambda content: content[:place] + added + content[place:]


def insert_line(number: int, line: bytes) -> Damage:
    def change(content: bytes) -> bytes:
        lines = content.split(b"\n")
        return b"\n".join([*lines[:number], line, *lines[number:]])

    return change


def edit(number: int, before: str, new: str) -> Damage:
    """Another number in a line that stays JSON, or nearly."""

    def change(content: bytes) -> bytes:
        lines = content.split(b"\n")
        at = number % len(lines)
        lines[at] = re.sub(before.encode() + rb"[0-9.]+", f"{before}{new}".encode(), lines[at])
        return b"\n".join(lines)

    return change


damages = st.one_of(
    st.builds(flip, places, st.integers(1, 255)),
    st.builds(cut, places, st.integers(1, 300)),
    places.map(lambda place: cut(place, len(WHOLE))),
    st.builds(insert, places, foreign),
    st.builds(insert_line, st.integers(0, len(LINES)), foreign | st.sampled_from(LINES)),
    st.builds(
        edit, st.integers(0, len(LINES)), st.sampled_from(['"index": ', '"right": ', 'seconds": ']), numbers
    ),
)


@settings(max_examples=int(os.environ.get("DEPCAP_FUZZ", "300")), deadline=None)
@given(st.lists(damages, min_size=1, max_size=4))
def test_no_damage_changes_a_result(done):
    content = WHOLE
    for damage in done:
        content = damage(content)
    lines = content.split(b"\n")[:-1]
    kept = [record for line, record in zip(LINES, RECORDS, strict=True) if line in lines]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        path = Path(folder, "run.jsonl")
        path.write_bytes(content)
        begin = time.process_time()
        try:
            with Records(path, RUN) as records:
                found, seconds = dict(records.problems), records.compile_seconds
                records.add(problem for problem in PROBLEMS if problem["index"] not in found)
        except ValueError as error:
            refusal = str(error)
            assert refusal.startswith(f"{path} holds no record of a run")
            assert not kept
            assert path.read_bytes() == content
            return
        with Records(path, RUN) as records:
            again = records.problems
        assert time.process_time() - begin < 2.0
    assert all(record == PROBLEMS[index] for index, record in found.items())
    assert {record["index"] for record in kept if "index" in record} <= {*found}
    compiled = sum(record.get("compile_seconds", 0.0) for record in kept)
    assert compiled <= seconds <= sum(COMPILED)
    assert bool(told) == any(meaning(line) not in MEANINGS for line in lines)
    assert [again[index] for index in range(len(PROBLEMS))] == PROBLEMS
