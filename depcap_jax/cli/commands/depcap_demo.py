"""`depcap demo`: the same problems, decoded carefully one token per pass and with DepCap."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from depcap_jax.cli.options import add_model_arguments, given_settings, load_model
from depcap_jax.cli.terminal import harmless, out, working
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import CACHES, RECIPES
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Run, Subject, evaluate
from depcap_jax.evaluation.tasks import load_task
from depcap_jax.tiny import held_out

EXAMPLES = """
  depcap demo
  depcap demo --model tiny-dream --cache none
  depcap demo --problems 200 --show 0 --recipes vanilla confidence cap depcap
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    add_model_arguments(parser)
    parser.add_argument("--problems", type=int, default=16, metavar="N", help="default: %(default)s of 500")
    parser.add_argument(
        "--show", type=int, default=3, metavar="N", help="answers to print; default: %(default)s"
    )
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["vanilla", "depcap"])
    parser.add_argument("--cache", choices=CACHES, default="dual-margin", help="default: %(default)s")
    parser.add_argument("--gen-length", type=int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--stop-at-eos",
        action=argparse.BooleanOptionalAction,
        help="end an answer at its end-of-text token (the default), or fill all of it",
    )


def run(arguments: argparse.Namespace) -> None:
    """Decodes, prints the answers and the table."""
    check_integer("--problems", arguments.problems, 1, len(held_out()))
    check_integer("--show", arguments.show, 0)
    task = load_task("tiny", limit=arguments.problems)
    subject = Subject(arguments.model, *load_model(arguments), batch_size=arguments.batch_size)
    runs: dict[str, Run] = {}
    for name in dict.fromkeys(arguments.recipes):
        with working(f"decoding {arguments.problems} problems with {name}"):
            runs[name] = evaluate(subject, task, Decoder(name, given_settings(arguments)))
    for index, problem in enumerate(task.problems[: arguments.show]):
        out.print(Text(harmless(str(problem.prompt)), "bold"))
        for name, evaluated in runs.items():
            record = evaluated.content["problems"][index]
            verdict = Text("right", "green") if record["right"] == 1 else Text("wrong", "red")
            out.print(Text(f"  {name}, {record['nfe']} passes: ", "dim") + verdict)
            out.print(Text(textwrap.indent(harmless(record["answer"]), "    ")))
        out.print()
    out.print(_summary(runs))
    out.print(
        f"{arguments.problems} held-out problems, {arguments.model}, cache {arguments.cache}, answers of "
        f"up to {arguments.gen_length} tokens; a pass is one run of the model; compilation is not timed."
    )


def _summary(runs: Mapping[str, Run]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for index, name in enumerate(("recipe", "right", "passes per answer", "tokens/s", "speed-up")):
        made.add_column(name, justify="right" if index else "left", no_wrap=True)
    first = next(iter(runs.values())).summary["tokens_per_second"]
    for name, evaluated in runs.items():
        summary = evaluated.summary
        made.add_row(
            name,
            f"{100 * summary['accuracy']:.1f} %",
            f"{summary['nfe']:.1f}",
            f"{summary['tokens_per_second']:.0f}",
            f"{summary['tokens_per_second'] / first:.2f}x" if first else "",
        )
    return made
