"""`depcap eval`: one decoder on one task."""

from __future__ import annotations

import argparse
from pathlib import Path

from depcap_jax.cli.options import add_decoder_arguments, add_model_arguments, chosen_decoder
from depcap_jax.cli.reports import add_task_arguments, prepare, run_all

EXAMPLES = """
  depcap eval --recipe depcap --cache dual
  depcap eval --model M --task gsm8k --data FOLDER --limit 100
  depcap eval --model M --task humaneval --allow-code-execution
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    add_model_arguments(parser)
    add_task_arguments(parser)
    add_decoder_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Evaluates, prints one line of a table and writes the run's JSON file."""
    subject, task = prepare(arguments)
    decoder = chosen_decoder(arguments, subject.model)
    (done,) = run_all(subject, task, [decoder], Path(arguments.out))
    print(f"\n{done.path}")
