"""The options that `eval`, `table` and `sweep` share. Importing this imports nothing heavy."""

from __future__ import annotations

import argparse

TASK_NAMES = ("tiny", "gsm8k", "math500", "mbpp", "humaneval")
"""As in `depcap_jax.evaluation.TASKS`."""


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --task, --data, --limit, --allow-code-execution, --batch-size, --seed, --no-chat and --out."""
    group = parser.add_argument_group("task")
    group.add_argument("--task", choices=TASK_NAMES, default="tiny", help="default: %(default)s")
    group.add_argument("--data", metavar="FOLDER", help="the task's JSONL files; default: from the hub")
    group.add_argument("--limit", type=int, metavar="N", help="the first N problems only")
    group.add_argument(
        "--allow-code-execution",
        action="store_true",
        help="let mbpp and humaneval run what the model writes, in a sandbox on this machine",
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


def add_plot_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --no-plots."""
    parser.add_argument("--no-plots", action="store_true", help="tables only; matplotlib is not needed then")
