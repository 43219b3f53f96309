"""The four benchmarks' data: JSONL files in a folder, or from the hub."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

_MOST_SHOTS = 16


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a benchmark's problems, and the examples that go before them, come from."""

    file: str
    hub: tuple[str, ...]
    """Its path on the hub, and its configuration's name if it has several."""
    fields: tuple[str, ...]
    """What every problem has."""
    shots_file: str | None = None
    shots_split: str | None = None


SOURCES = {
    "gsm8k": Source(
        "gsm8k_test.jsonl", ("openai/gsm8k", "main"), ("question", "answer"), "gsm8k_train.jsonl", "train"
    ),
    "math500": Source("math500.jsonl", ("HuggingFaceH4/MATH-500",), ("problem", "solution", "answer")),
    "mbpp": Source(
        "mbpp_test.jsonl",
        ("google-research-datasets/mbpp", "full"),
        ("text", "code", "test_list"),
        "mbpp_prompt.jsonl",
        "prompt",
    ),
    "humaneval": Source(
        "humaneval.jsonl",
        ("openai/openai_humaneval",),
        ("prompt", "canonical_solution", "test", "entry_point"),
    ),
}


def load_splits(name: str, folder: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """The splits `test`, a `datasets.Dataset`, and `shots`, the first few examples.

    Raises:
      ValueError: naming the file that is missing or the line that is not as it must be.
    """
    import datasets  # pyright: ignore[reportMissingImports]  # comes with lm-eval

    source = SOURCES[name]
    if folder is None:
        splits: Any = datasets.load_dataset(*source.hub)
        shots = splits[source.shots_split] if source.shots_split else []
        first = [shots[index] for index in range(min(len(shots), _MOST_SHOTS))]
        return {"test": splits["test"], "shots": [_unix(shot) for shot in first]}
    shots = read_jsonl(Path(folder) / source.shots_file, source.fields) if source.shots_file else []
    test = read_jsonl(Path(folder) / source.file, source.fields)
    return {"test": datasets.Dataset.from_list(test), "shots": [_unix(shot) for shot in shots[:_MOST_SHOTS]]}


def _unix(row: dict[str, Any]) -> dict[str, Any]:
    """MBPP's programs have Windows' line ends, which no model needs to learn from the examples."""
    return {
        key: value.replace("\r\n", "\n") if isinstance(value, str) else value for key, value in row.items()
    }


def read_jsonl(path: Path, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """The objects of a file, each of which must have these fields."""
    if not path.is_file():
        raise ValueError(f"no such file: {path}; the data folder must hold {path.name}")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            raise ValueError(f"{path}, line {number}, is not JSON") from None
        missing = [field for field in fields if not isinstance(row, dict) or field not in row]
        if missing:
            raise ValueError(f"{path}, line {number}, lacks {', '.join(missing)}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} is empty")
    return rows
