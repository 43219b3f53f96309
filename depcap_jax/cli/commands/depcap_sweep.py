"""`depcap sweep`: one setting varied at a time, as in the paper's appendix."""

from __future__ import annotations

import argparse
from pathlib import Path

from depcap_jax.cli.options import add_decoder_arguments, add_model_arguments, chosen_decoder
from depcap_jax.cli.reports import add_task_arguments, parse_vary, prepare, run_all, write_reports
from depcap_jax.evaluation.figures import plot_sweep
from depcap_jax.evaluation.grid import appendix, sweep_decoders

EXAMPLES = """
  depcap sweep --vary tau_low=0.5,0.65,0.8,0.9
  depcap sweep --vary lambda=0.6,1.2 --vary gamma=-8,-16,-24 --cache dual
  depcap sweep --recipe confidence --vary block_length=8,16,32,64
  depcap sweep                            # all that the appendix varies
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_arguments(parser)
    add_task_arguments(parser, plots=True)
    parser.add_argument(
        "--vary",
        action="append",
        metavar="NAME=V1,V2,...",
        help="a setting and its values; may be given again; default: those of the paper's appendix",
    )
    add_decoder_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Evaluates value by value and writes the table and one panel per setting."""
    varied = parse_vary(arguments.vary or [], arguments.recipe)
    subject, task = prepare(arguments)
    varied = varied or appendix(arguments.recipe, subject.model.config.max_length)
    lines = sweep_decoders(chosen_decoder(arguments, subject.model), varied)
    runs = run_all(subject, task, [decoder for _, _, decoder in lines], Path(arguments.out))
    done = [(name, value, run) for (name, value, _), run in zip(lines, runs, strict=True)]
    name, recipe = f"sweep-{arguments.recipe}-{'-'.join(varied)}", arguments.recipe
    write_reports(arguments, name, runs, lambda title: plot_sweep(done, f"{recipe}: {title}"))
