"""`depcap bench`: what decoding costs beyond its forward passes."""

from __future__ import annotations

import argparse

from depcap_jax.inspect import overhead as bench

SUMMARY = "divide whole decodes by their own bare forward passes, in one run"
EXAMPLES = """
  depcap bench                                                # a random yardstick model, 512 wide
  depcap bench --model tiny-llada --prompt-length 64 --gen-length 128 --caches none prefix dual
  depcap bench --recipes vanilla depcap --batches 1 4 --repeats 5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--model", metavar="M", help="a name or folder; default: a random yardstick model")
    bench.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Prints the table."""
    from depcap_jax.checkpoints.loading import load

    bench.report(arguments, None if arguments.model is None else load(arguments.model)[0])
