"""A run in a few numbers, and a table of runs: for the terminal, as Markdown and as CSV.

The package's docstring defines the numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from depcap_jax.evaluation.engine import Run

COLUMNS = ("decoder", "cache", "accuracy", "tokens/s", "nfe", "speed-up", "block", "problems", "compile s")
"""Of a table: accuracy in percent with its standard error, nfe and block length as means."""

VANILLA = ("vanilla", "fixed-32+top-one")
"""The names of what speed-ups are against."""


def summarise(records: Sequence[Mapping[str, Any]], compile_seconds: float) -> dict[str, Any]:
    """The numbers of a run from its problems' records."""
    right = np.asarray([record["right"] for record in records])
    tokens = sum(record["tokens"] for record in records)
    seconds = sum(record["seconds"] for record in records)
    passes = sum(record["nfe"] for record in records)
    blocks = [size for record in records for size in record["block_sizes"]]
    return {
        "problems": len(records),
        "accuracy": float(right.mean()),
        "accuracy_standard_error": float(np.sqrt(right.var() / len(right))),
        "nfe": passes / len(records),
        "tokens_per_pass": tokens / passes if passes else 0.0,
        "block_size": float(np.mean(blocks)) if blocks else 0.0,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "compile_seconds": compile_seconds,
        "failed": sum(record["status"] != "OK" for record in records),
    }


def speed_up(run: Run, runs: Sequence[Run]) -> float | None:
    """Tokens per second over those of vanilla without a cache; None if that is not among the runs."""
    bases = [r for r in runs if r.decoder.recipe in VANILLA and r.decoder.cache == "none"]
    base = bases[0].summary["tokens_per_second"] if bases else 0.0
    return run.summary["tokens_per_second"] / base if base else None


def cells(run: Run, runs: Sequence[Run]) -> tuple[str, ...]:
    """A line of the table, under `COLUMNS`."""
    summary, faster = run.summary, speed_up(run, runs)
    return (
        run.decoder.label,
        run.decoder.cache,
        f"{100 * summary['accuracy']:.1f} ± {100 * summary['accuracy_standard_error']:.1f}",
        f"{summary['tokens_per_second']:.1f}",
        f"{summary['nfe']:.1f}",
        "" if faster is None else f"{faster:.2f}",
        f"{summary['block_size']:.1f}",
        str(summary["problems"]),
        f"{summary['compile_seconds']:.1f}",
    )


def to_markdown(runs: Sequence[Run], **more: Sequence[str]) -> str:
    """The table in Markdown, with `more` columns by their names."""
    columns, added = (*COLUMNS, *more), zip(*more.values(), strict=True) if more else [()] * len(runs)
    lines = [columns, ("---", "---", *["---:"] * (len(columns) - 2))]
    lines += [(*cells(run, runs), *texts) for run, texts in zip(runs, added, strict=True)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_csv(runs: Sequence[Run], **more: Sequence[Any]) -> str:
    """The table as CSV, in full precision, with `more` columns by their names."""
    settings = sorted({name for run in runs for name in run.decoder.settings} - {"cache"})
    numbers = list(runs[0].summary) if runs else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["recipe", "cache", *settings, *numbers, "speed_up", *more])
    for index, run in enumerate(runs):
        added = [column[index] for column in more.values()]
        chosen = [run.decoder.settings.get(name, "") for name in settings]
        values = [run.summary[name] for name in numbers]
        writer.writerow(
            [run.decoder.recipe, run.decoder.cache, *chosen, *values, speed_up(run, runs), *added]
        )
    return text.getvalue()


def failures(runs: Sequence[Run]) -> list[str]:
    """A line for each run in which answers did not end well: they count as wrong."""
    return [
        f"{run.decoder.label} ({run.decoder.cache}): {run.summary['failed']} of {run.summary['problems']} "
        f"answers did not end well and count as wrong; see `status` in {run.path or 'its records'}"
        for run in runs
        if run.summary["failed"]
    ]
