"""The file of records: what is in it, what a damage costs, and what is no such file."""

from __future__ import annotations

import os
import random
import warnings
from pathlib import Path

import pytest

from depcap_jax.evaluation.records import Records

RUN = {"task": "tiny", "seed": 0}
PROBLEMS = [
    {"index": index, "answer": f"It is {index}\n\u2028 \ud800.", "right": index % 2, "seconds": index / 7}
    for index in range(5)
]


def write(path: Path) -> bytes:
    """A file of all problems and a compilation; its content."""
    with Records(path, RUN) as records:
        records.add_compilation(1.5)
        records.add(PROBLEMS)
    return path.read_bytes()


def read(path: Path) -> tuple[dict[int, dict], float]:
    with Records(path, RUN) as records:
        return records.problems, records.compile_seconds


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "folder" / "run.jsonl"
    write(path)
    with Records(path, RUN) as records:
        assert list(records.problems.values()) == PROBLEMS
        assert records.compile_seconds == 1.5
        with pytest.raises(ValueError, match="problem 2 is recorded already"):
            records.add([{"index": 2}])
        with pytest.raises(ValueError, match="another process"):
            Records(path, RUN)
    with pytest.raises(ValueError, match="other settings"):
        Records(path, {**RUN, "seed": 1})


def test_in_memory_anything_may_describe_a_run():
    """A policy, say, which no file could hold."""
    with Records(None, {"cache": object()}) as records:
        records.add_compilation(1.5)
        records.add(PROBLEMS)
        assert list(records.problems.values()) == PROBLEMS
        assert records.compile_seconds == 1.5


def test_a_damaged_line_is_told_and_the_others_are_kept(tmp_path):
    path = tmp_path / "run.jsonl"
    content = write(path)
    path.write_bytes(content.replace(b"It is 2", b"It is 3"))
    with pytest.warns(UserWarning, match=r"run\.jsonl: damaged, .*: line 5$"):
        problems, _ = read(path)
    assert [*problems.values()] == [problem for problem in PROBLEMS if problem["index"] != 2]
    with pytest.warns(UserWarning, match="line 5$"), Records(path, RUN) as records:
        records.add([PROBLEMS[2]])
    with pytest.warns(UserWarning, match="line 5$"):
        problems, _ = read(path)
    assert sorted(problems) == list(range(5))
    assert problems[2] == PROBLEMS[2]


def test_no_flipped_bit_changes_a_result(tmp_path):
    """300 of them: what is read was written, and what is missing is told, but for a last line cut off."""
    path = tmp_path / "run.jsonl"
    content = write(path)
    chance = random.Random(0)
    for position in chance.sample(range(8 * len(content)), 300):
        flipped = bytearray(content)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            problems, seconds = read(path)
        assert all(record == PROBLEMS[index] for index, record in problems.items())
        assert seconds in (0.0, 1.5)
        lost = len(PROBLEMS) - len(problems)
        assert lost + (seconds == 0.0) <= 2  # a line's end that was flipped makes two lines one
        assert told or not lost or position // 8 == len(content) - 1


def test_a_line_of_another_run_does_not_count(tmp_path):
    path, other = tmp_path / "run.jsonl", tmp_path / "other.jsonl"
    content = write(path)
    with Records(other, {**RUN, "seed": 1}) as records:
        records.add([{"index": 7, "answer": "another run's"}])
    path.write_bytes(content + other.read_bytes().splitlines(keepends=True)[1])
    with pytest.warns(UserWarning, match="line 8$"):
        assert sorted(read(path)[0]) == list(range(5))


@pytest.mark.parametrize(
    "content",
    [b"damaged\n", b"no line", b"\n", b"{}\n[]\n1\nnull\n", b"[" * 100_000 + b"\n", bytes(range(256)) * 9],
    ids=["line", "no line", "empty line", "other JSON", "deep", "bytes"],
)
def test_a_file_that_is_no_record_is_left_alone(content, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.jsonl holds no record of a run; remove it, or name another"):
        Records(path, RUN)
    assert path.read_bytes() == content


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "run.jsonl")
    for path in (tmp_path / "run.jsonl", tmp_path):
        with pytest.raises(ValueError, match="is not a file"):
            Records(path, RUN)


def test_a_header_cut_off_is_written_again(tmp_path):
    path = tmp_path / "run.jsonl"
    content = write(path)
    path.write_bytes(content[:10])
    assert write(path) == content
