"""`depcap table`: the paper's Table 1, and with several caches its cache figure; or all policies, crossed."""

from __future__ import annotations

import argparse
from pathlib import Path

from depcap_jax.cli.options import add_model_arguments
from depcap_jax.cli.reports import add_task_arguments, prepare, run_all, run_each, write_reports
from depcap_jax.decoding.field.families import PARTITIONS, SELECTS
from depcap_jax.decoding.recipes import CACHES, RECIPES
from depcap_jax.evaluation.engine import Run, Subject
from depcap_jax.evaluation.figures import plot_frontier, plot_table
from depcap_jax.evaluation.frontier import family, score_families
from depcap_jax.evaluation.grid import USUAL, cross_decoders, table_decoders
from depcap_jax.evaluation.grid_page import grid_page
from depcap_jax.evaluation.summary import to_csv, to_markdown
from depcap_jax.evaluation.tasks import Task
from depcap_jax.text.batching import answer_length

EXAMPLES = """
  depcap table
  depcap table --model tiny-dream --limit 200 --caches none prefix dual
  depcap table --model M --task gsm8k --data FOLDER --recipes vanilla confidence depcap
  depcap table --all --task tiny-long --limit 100
  depcap table --all --partitions sliding depga --selects cap frechet --caches none dual
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_arguments(parser)
    add_task_arguments(parser, plots=True)
    parser.add_argument(
        "--caches", nargs="+", choices=CACHES, default=["none"], metavar="CACHE", help="default: none"
    )
    parser.add_argument(
        "--recipes", nargs="+", choices=RECIPES, metavar="NAME", help="default: all of the table"
    )
    parser.add_argument("--gen-length", type=int, metavar="N", help="default: 256, or half the context")
    group = parser.add_argument_group("all policies")
    group.add_argument(
        "--all",
        action="store_true",
        help="in place of the paper's table, partitions crossed with selections: each with the usual ones "
        f"({', '.join(USUAL)}), at each value of the setting that a selection is swept by",
    )
    for option, known in (("--partitions", PARTITIONS), ("--selects", SELECTS)):
        group.add_argument(
            option,
            nargs="+",
            choices=tuple(known),
            metavar="NAME",
            help=f"of {', '.join(known)}; default: all; name both, and each goes with each",
        )
    group.add_argument("--full", action="store_true", help="cross all with all")


def run(arguments: argparse.Namespace) -> None:
    """Evaluates line by line and writes the table and its plot."""
    for option in ("partitions", "selects", "full"):
        if getattr(arguments, option) and not arguments.all:
            raise ValueError(f"--{option} is for --all, the table of all policies")
    if arguments.recipes and arguments.all:
        raise ValueError("--all crosses policies and not recipes: leave out --recipes")
    subject, task = prepare(arguments)
    gen_length = arguments.gen_length
    if gen_length is None:
        gen_length = answer_length(subject.model.config.max_length)
    if arguments.all:
        _cross(arguments, subject, task, gen_length)
        return
    decoders = table_decoders(arguments.caches, gen_length=gen_length)
    if arguments.recipes:
        decoders = [decoder for decoder in decoders if decoder.recipe in arguments.recipes]
        absent = set(arguments.recipes) - {decoder.recipe for decoder in decoders}
        if absent:
            raise ValueError(f"the paper's table has no line with the recipe {', '.join(sorted(absent))}")
    runs = run_all(subject, task, decoders, Path(arguments.out))
    write_reports(arguments, "table", runs, lambda title: plot_table(runs, title))


def _cross(arguments: argparse.Namespace, subject: Subject, task: Task, gen_length: int) -> None:
    """Evaluates all that is to be crossed; what was done before Ctrl-C is reported too."""
    decoders = cross_decoders(
        arguments.partitions, arguments.selects, arguments.caches, gen_length=gen_length, full=arguments.full
    )
    pairs = {(decoder.recipe, decoder.cache) for decoder in decoders}
    print(
        f"{len(decoders)} runs of {len(task.problems)} problems: {len(pairs)} combinations, each at the "
        "values of its selection's setting. Ctrl-C loses nothing: the same command goes on.\n"
    )
    runs: list[Run] = []
    try:
        for done in run_each(subject, task, decoders, Path(arguments.out)):
            runs.append(done)
    finally:
        if runs:
            write_reports(
                arguments,
                "grid",
                runs,
                lambda title: plot_frontier(runs, title),
                planned=decoders,
                texts=lambda title: _texts(runs, title),
            )


def _texts(runs: list[Run], title: str) -> dict[str, str]:
    scores = score_families(runs)
    aup = [scores[family(run)] for run in runs]
    return {
        "md": to_markdown(runs, AUP=[f"{score:.0f}" for score in aup]),
        "csv": to_csv(runs, aup=aup),
        "html": grid_page(runs, title),
    }
