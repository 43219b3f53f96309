"""What the commands `eval`, `table` and `sweep` share: options, the loop over settings, and the reports."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from depcap_jax.evaluation.decoder import Setting
from depcap_jax.evaluation.engine import Run, Subject, evaluate
from depcap_jax.evaluation.records import publish_text
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution
from depcap_jax.evaluation.summary import COLUMNS, cells, failures, to_csv, to_markdown
from depcap_jax.evaluation.tasks import Task, load_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]  # optional
    from transformers import PreTrainedTokenizerBase

    from depcap_jax.models import Transformer

Loader = Callable[[argparse.Namespace], "tuple[Transformer, PreTrainedTokenizerBase | None]"]


def prepare(arguments: argparse.Namespace, load_model: Loader) -> tuple[Subject, Task]:
    """The model and the problems that the options name; a wrong task is found before the model is loaded."""
    allow_code_execution(arguments.allow_code_execution)
    task = load_task(arguments.task, data=arguments.data, limit=arguments.limit)
    model, tokenizer = load_model(arguments)
    subject = Subject(
        str(arguments.model),
        model,
        tokenizer,
        batch_size=arguments.batch_size,
        chat=False if arguments.no_chat else None,
        seed=arguments.seed,
    )
    return subject, task


def run_all(subject: Subject, task: Task, settings: Sequence[Setting], folder: Path) -> list[Run]:
    """Evaluates one setting after another and prints a line of the table as each is done."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting in settings:
        subject.build(setting)  # a wrong one is found before the first hour, not after it
    label_width = max(len(setting.label) for setting in settings)
    _print_line(COLUMNS, label_width)
    runs: list[Run] = []
    for setting in settings:
        runs.append(evaluate(subject, task, setting, folder))
        _print_line(cells(runs[-1], runs), label_width)
    for line in failures(runs):
        print(f"warning: {line}", file=sys.stderr)
    return runs


def write_reports(runs: Sequence[Run], stem: Path, plot: Callable[[], Figure] | None) -> None:
    """Writes STEM-HASH.md, .csv and, with `plot`, .png and .svg, and says where.

    The hash is that of the runs: other problems or other settings do not overwrite a report.
    """
    digest = hashlib.sha256("\n".join(run.path.name for run in runs).encode()).hexdigest()
    stem = stem.with_name(f"{stem.name}-{digest[:8]}")
    publish_text(stem.with_name(f"{stem.name}.md"), to_markdown(runs))
    publish_text(stem.with_name(f"{stem.name}.csv"), to_csv(runs))
    kinds = "md, csv"
    if plot is not None:
        from depcap_jax.evaluation.figures import save_figure

        save_figure(plot(), stem)
        kinds += ", png, svg"
    print(f"\n{stem}.{{{kinds}}}; a JSON file a line beside them")


def report_stem(arguments: argparse.Namespace, command: str) -> Path:
    """Where a command's reports go, without the ending."""
    return Path(arguments.out) / f"{command}-{arguments.task}-{Path(arguments.model).name}"


def _print_line(line: Sequence[str], label_width: int) -> None:
    first, cache, *numbers = line
    text = f"{first:<{label_width}}  {cache:<6}" + "".join(f"{number:>11}" for number in numbers)
    tqdm.write(text, file=sys.stdout)  # above the progress bar
