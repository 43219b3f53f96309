"""What the task files beside this one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from depcap_jax.evaluation.harness.data import load_splits
from depcap_jax.evaluation.scoring.benchmark_scores import SCORERS


def _data(name: str, data: str | None = None, **_: Any) -> dict[str, Any]:
    return load_splits(name, data)


def _score(name: str, document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    return {"acc": SCORERS[name](document, results[0])}


gsm8k_data, gsm8k_score = partial(_data, "gsm8k"), partial(_score, "gsm8k")
math500_data, math500_score = partial(_data, "math500"), partial(_score, "math500")
mbpp_data, mbpp_score = partial(_data, "mbpp"), partial(_score, "mbpp")
humaneval_data, humaneval_score = partial(_data, "humaneval"), partial(_score, "humaneval")
