"""`depcap convert`, also `depcap-convert`, and `python -m convert` in a checkout."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from depcap_jax.cli import Parser, run_command
from depcap_jax.cli.interrupts import INTERRUPTED, clears_up, ends_at_once

if TYPE_CHECKING:
    from depcap_jax.checkpoints.conversion import Report

EXAMPLES = """
  depcap convert GSAI-ML/LLaDA-8B-Instruct path/to/llada-8b --dtype bfloat16 --verify
  depcap convert path/to/dream-7b path/to/merged --adapter path/to/lora
  depcap convert --export path/to/llada-8b path/to/back-in-pytorch-layout
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from depcap_jax.checkpoints.dtypes import DTYPES
    from depcap_jax.cli.options import add_hint_arguments
    from depcap_jax.models.quantization import BITS

    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a Hugging Face folder, or ORG/NAME[@REVISION] on the hub (--export: a converted folder)",
    )
    parser.add_argument("target", metavar="TARGET", help="the folder to make")
    parser.add_argument("--dtype", choices=list(DTYPES), help="of the weights; default: as in SOURCE")
    parser.add_argument("--quantize", choices=BITS, help="store the matrices in few bits")
    parser.add_argument("--overwrite", action="store_true", help="replace TARGET if it is a checkpoint")
    parser.add_argument("--adapter", metavar="FOLDER", help="a LoRA adapter (PEFT) to merge; or on the hub")
    add_hint_arguments(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--verify", action="store_true", help="read TARGET back and compare every tensor")
    way.add_argument("--export", action="store_true", help="from a converted folder to a Hugging Face folder")


def run(arguments: argparse.Namespace) -> None:
    """Converts, or exports."""
    import jax

    from depcap_jax.checkpoints.errors import CheckpointError
    from depcap_jax.cli.options import hints

    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")  # a conversion has no use for an accelerator's memory
    settings = {"dtype": arguments.dtype, "overwrite": arguments.overwrite}
    more = {"adapter": arguments.adapter, **hints(arguments)}
    if arguments.export:
        from depcap_jax.checkpoints.huggingface.export import export

        if arguments.quantize:
            raise CheckpointError("--quantize is for converting: what is exported has full numbers")
        if any(value is not None for value in more.values()):
            raise CheckpointError(
                "--adapter, --mask-id and --predicts-next are for converting, not for --export"
            )
        with clears_up("depcap-convert"):
            made = export(arguments.source, arguments.target, **settings)
        print(f"exported to {made}")
        return
    from tqdm import tqdm

    from depcap_jax.checkpoints.conversion import convert

    # disable=None: only on a terminal
    with clears_up("depcap-convert"), tqdm(unit="B", unit_scale=True, disable=None) as bar:

        def show(phase: str, done: int, total: int) -> None:
            if done == 0:
                bar.set_description(phase, refresh=False)
                bar.reset(total)
            bar.update(done - bar.n)

        report = convert(
            arguments.source,
            arguments.target,
            **settings,
            **more,
            quantize=arguments.quantize,
            verify=arguments.verify,
            progress=show,
        )
    for warning in report.warnings:
        print(f"depcap-convert: warning: {' '.join(warning.split())}", file=sys.stderr)
    print(_summary(report, arguments.target))


def main(argv: Sequence[str] | None = None) -> int:
    """The command `depcap-convert`: returns its exit status, or exits with it if the arguments are wrong."""
    with ends_at_once():
        import jax  # noqa: F401  # what takes long, before anything begins
    try:
        parser = Parser(
            prog="depcap-convert",
            description="Converts a PyTorch checkpoint of LLaDA, Dream or a model like them for depcap_jax, "
            "or back with --export.",
            epilog="Exit status: 0 done, 2 something is wrong with the input or the disk, 130 interrupted, "
            "143 terminated. "
            "TARGET appears complete or not at all.",
        )
        add_arguments(parser)
        parser.set_defaults(run=run, prog=parser.prog)
        return run_command(parser.parse_args(argv))
    except KeyboardInterrupt:
        print("depcap-convert: interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED


def _summary(report: Report, target: str) -> str:
    rate = report.bytes_read / max(report.seconds, 1e-9)
    written_as = report.quantize or report.dtype
    lines = [
        f"converted to {target}" + (", verified" if report.verified else ""),
        f"  tensors      {report.tensors:,}",
        f"  parameters   {report.parameters:,}",
        f"  bytes        {report.bytes_read:,} read, {report.bytes_written:,} written as {written_as}",
        f"  seconds      {report.seconds:,.1f} ({rate / 1e6:,.0f} MB/s)",
        f"  peak memory  {report.peak_memory / 1e6:,.0f} MB",
    ]
    return "\n".join(lines)
