"""`depcap table`: the paper's Table 1, and with several caches its cache figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from depcap_jax.cli.options import add_model_arguments
from depcap_jax.cli.reports import add_task_arguments, prepare, run_all, write_reports
from depcap_jax.decoding.recipes import CACHES, RECIPES
from depcap_jax.evaluation.figures import plot_table
from depcap_jax.evaluation.grid import table_decoders
from depcap_jax.text.batching import answer_length

EXAMPLES = """
  depcap table
  depcap table --model tiny-dream --limit 200 --caches none prefix dual
  depcap table --model M --task gsm8k --data FOLDER --recipes vanilla confidence depcap
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


def run(arguments: argparse.Namespace) -> None:
    """Evaluates line by line and writes the table and its plot."""
    subject, task = prepare(arguments)
    gen_length = arguments.gen_length
    decoders = table_decoders(
        arguments.caches,
        gen_length=answer_length(subject.model.config.max_length) if gen_length is None else gen_length,
    )
    if arguments.recipes:
        decoders = [decoder for decoder in decoders if decoder.recipe in arguments.recipes]
        absent = set(arguments.recipes) - {decoder.recipe for decoder in decoders}
        if absent:
            raise ValueError(f"the paper's table has no line with the recipe {', '.join(sorted(absent))}")
    runs = run_all(subject, task, decoders, Path(arguments.out))
    write_reports(arguments, "table", runs, lambda title: plot_table(runs, title))
