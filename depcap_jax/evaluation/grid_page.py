"""All runs of a grid as a web page: a table to sort and filter, beside a plot. One file, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depcap_jax.evaluation.frontier import family, score_families
from depcap_jax.inspect.single_file import fill

if TYPE_CHECKING:
    from depcap_jax.evaluation.engine import Run

_TEMPLATE = Path(__file__).with_name("grid.html")


def grid_page(runs: Sequence[Run], title: str) -> str:
    """The page as a text.

    Raises:
      ValueError: if there is no run.
    """
    if not runs:
        raise ValueError("a page needs at least one run")
    scores = score_families(runs)
    return fill(_TEMPLATE, title, {"title": title, "runs": [_row(run, scores) for run in runs]})


def _row(run: Run, scores: Mapping[tuple[str, str], float]) -> dict[str, Any]:
    partition, _, select = run.decoder.recipe.partition("+")
    _, _, setting = run.decoder.label.partition(", ")
    summary = run.summary
    return {
        "partition": partition,
        "select": select,
        "cache": run.decoder.cache,
        "setting": setting,
        "accuracy": 100 * summary["accuracy"],
        "error": 100 * summary["accuracy_standard_error"],
        "passes": summary["nfe"],
        "speed": summary["tokens_per_second"],
        "aup": scores[family(run)],
    }
