"""What the commands `eval`, `table` and `sweep` share: options, the loop over decoders, and the reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from depcap_jax.cli.options import load_model
from depcap_jax.decoding.recipes import recipe_settings
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Run, Subject, evaluate
from depcap_jax.evaluation.figures import require_matplotlib, save_figure
from depcap_jax.evaluation.provenance import fingerprint
from depcap_jax.evaluation.records import publish_text
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution
from depcap_jax.evaluation.scoring.sandbox import UNGUARDED
from depcap_jax.evaluation.summary import COLUMNS, cells, failures, to_csv, to_markdown
from depcap_jax.evaluation.tasks import TASKS, Task, load_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_ENOUGH = 4
"""Runs, after which their mean says what the others will take."""
_PAPER_NAMES = {"lambda": "lambda_u", "l_gen": "gen_length", "k": "top_k_cache"}


def add_task_arguments(parser: argparse.ArgumentParser, plots: bool = False) -> None:
    """Adds the options of the task (--task, ...) and of the run (--seed, ...), and --no-plots if it plots."""
    group = parser.add_argument_group("task")
    group.add_argument(
        "--task",
        choices=TASKS,
        default="tiny",
        help="tiny and tiny-long come with the package: one problem in a prompt, or several; "
        "default: %(default)s",
    )
    group.add_argument("--data", metavar="FOLDER", help="the task's JSONL files; default: from the hub")
    group.add_argument("--limit", type=int, metavar="N", help="the first N problems only")
    group.add_argument(
        "--allow-code-execution",
        action="store_true",
        help="let mbpp and humaneval run what the model writes, in a sandbox on this machine",
    )
    group.add_argument(
        "--unsafe-code-execution",
        action="store_true",
        help="the same, also where no sandbox works: the code may then do whatever you may",
    )
    group = parser.add_argument_group("run")
    group.add_argument(
        "--batch-size",
        type=int,
        default=8,
        metavar="N",
        help="problems decoded together; it changes the time and nothing else; default: %(default)s",
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="for sampling; default: %(default)s")
    group.add_argument(
        "--no-chat", action="store_true", help="bare prompts, also if there is a chat template"
    )
    group.add_argument(
        "--out",
        default="depcap-results",
        metavar="FOLDER",
        help="results; a run that was stopped goes on from there; default: %(default)s",
    )
    if plots:
        group.add_argument("--no-plots", action="store_true", help="tables only; needs no matplotlib")


def parse_vary(texts: Sequence[str], recipe: str) -> dict[str, list[Any]]:
    """Reads NAME=v1,v2,...; NAME as `recipe_settings` has it, or as the paper writes it.

    Raises:
      ValueError: naming what cannot be read, or the setting that the recipe does not have.
    """
    varied: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().lower().replace("-", "_")
        name = _PAPER_NAMES.get(name, name)
        if not equals or not values:
            raise ValueError(f"what to vary is written NAME=VALUE,VALUE,..., got {text!r}")
        known = recipe_settings(recipe)
        if name not in known:
            raise ValueError(f"recipe {recipe!r} has no setting {name!r}; it has: {', '.join(known)}")
        if name in varied:
            raise ValueError(f"{name} is varied twice")
        varied[name] = list(dict.fromkeys(_value(value) for value in values.split(",")))
    return varied


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text.strip()  # a cache's name
    if isinstance(value, (list, dict)):
        raise ValueError(f"what to vary is written NAME=VALUE,VALUE,..., got the value {text!r}")
    return value


def prepare(arguments: argparse.Namespace) -> tuple[Subject, Task]:
    """The model and the problems that the options name; what is wrong is found before the model is loaded."""
    if not getattr(arguments, "no_plots", True):
        require_matplotlib()
    allow_code_execution(arguments.allow_code_execution, unsafe=arguments.unsafe_code_execution)
    task = load_task(arguments.task, data=arguments.data, limit=arguments.limit)
    if task.sandbox == UNGUARDED:
        warning = "warning: no sandbox works here; what the model writes may do whatever you may"
        print(warning, file=sys.stderr)
    run = {"batch_size": arguments.batch_size, "seed": arguments.seed}
    chat = False if arguments.no_chat else None
    return Subject(arguments.model, *load_model(arguments), chat=chat, **run), task


def run_all(subject: Subject, task: Task, decoders: Sequence[Decoder], folder: Path) -> list[Run]:
    """Evaluates one decoder after another and prints a line of the table as each is done."""
    return list(run_each(subject, task, decoders, folder))


def run_each(subject: Subject, task: Task, decoders: Sequence[Decoder], folder: Path) -> Iterator[Run]:
    """The same, a run as soon as it is done; whoever stops it has those that were."""
    folder.mkdir(parents=True, exist_ok=True)
    for decoder in decoders:
        subject.build(decoder)  # a wrong one is found before the first hour, not after it
    labels = [COLUMNS[:2], *((decoder.label, decoder.cache) for decoder in decoders)]
    widths = [max(map(len, column)) for column in zip(*labels, strict=True)]
    _print_line(COLUMNS, widths)
    runs: list[Run] = []
    for decoder in decoders:
        runs.append(_run(subject, task, decoder, folder, _remaining(runs, len(decoders))))
        _print_line(cells(runs[-1], runs), widths)
        if len(runs) == _ENOUGH < len(decoders):
            tqdm.write(f"run {_remaining(runs, len(decoders))}", file=sys.stderr)
        yield runs[-1]
    for line in failures(runs):
        print(f"warning: {line}", file=sys.stderr)


def _remaining(runs: Sequence[Run], count: int) -> str:
    """How far it is, and how long the rest may take if it is as slow as what is done, in whatever session."""
    place = f"{len(runs) + 1} of {count}"
    if not runs:
        return place
    seconds = sum(run.summary["seconds"] + run.summary["compile_seconds"] for run in runs) / len(runs)
    return f"{place}, about {tqdm.format_interval(round(seconds * (count - len(runs))))} left"


def _run(subject: Subject, task: Task, decoder: Decoder, folder: Path, remaining: str) -> Run:
    """Evaluates a decoder, with a bar if there is a terminal."""
    label = f"[{remaining}] {decoder.label} ({decoder.cache})"
    with tqdm(desc=label, unit="problem", disable=None, leave=False, dynamic_ncols=True) as bar:

        def show(done: int, total: int, right: float) -> None:
            bar.total = total
            bar.set_postfix_str(f"accuracy {100 * right / max(done, 1):.1f} %", refresh=False)
            bar.update(done - bar.n)

        return evaluate(subject, task, decoder, folder, progress=show)


def write_reports(
    arguments: argparse.Namespace,
    name: str,
    runs: Sequence[Run],
    plot: Callable[[str], Figure],
    *,
    planned: Sequence[Decoder] | None = None,
    texts: Callable[[str], Mapping[str, str]] | None = None,
) -> None:
    """Writes NAME-TASK-MODEL-HASH with the endings .md, .csv and, of the plot, .png and .svg; says where.

    The hash is that of the decoders and of what they ran on: other problems or other decoders do not
    overwrite a report.

    Args:
      arguments: the command's.
      name: what the report is of.
      runs: its lines.
      plot: makes the figure of a title.
      planned: the decoders of the whole report, if the runs are a part of it.
      texts: makes the texts of a title, by their endings; by default the table as Markdown and as CSV.
    """
    decoders = [[d.recipe, d.settings] for d in planned or [run.decoder for run in runs]]
    model = Path(arguments.model).name
    digest = fingerprint([runs[0].path and runs[0].path.name, decoders])[:8]
    title = f"{model}, {arguments.task}, {runs[0].summary['problems']} problems"
    stem = Path(arguments.out) / f"{name}-{arguments.task}-{model}-{digest}"
    written = texts(title) if texts else {"md": to_markdown(runs), "csv": to_csv(runs)}
    for kind, text in written.items():
        publish_text(stem.with_name(f"{stem.name}.{kind}"), text)
    kinds = ", ".join(written)
    if not arguments.no_plots:
        save_figure(plot(title), stem)
        kinds += ", png, svg"
    print(f"\n{stem}.{{{kinds}}}; a JSON file per line beside them")


def _print_line(line: Sequence[str], widths: Sequence[int]) -> None:
    """The labels to the left, each as wide as its column, and the numbers to the right."""
    labels = (f"{text:<{width}}" for text, width in zip(line, widths, strict=False))
    numbers = "".join(f"{number:>12}" for number in line[len(widths) :])
    tqdm.write("  ".join(labels) + numbers, file=sys.stdout)  # above the progress bar
