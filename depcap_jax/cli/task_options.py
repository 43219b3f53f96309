"""The options that `eval`, `table` and `sweep` share, and how `--vary` is read."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from depcap_jax.decoding.recipes import recipe_settings
from depcap_jax.evaluation.tasks import TASKS

_PAPER_NAMES = {"lambda": "lambda_u", "l_gen": "gen_length", "k": "top_k_cache"}


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the task (--task, --data, ...) and of the run (--batch-size, --seed, ...)."""
    group = parser.add_argument_group("task")
    group.add_argument("--task", choices=TASKS, default="tiny", help="default: %(default)s")
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


def add_plot_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --no-plots."""
    parser.add_argument("--no-plots", action="store_true", help="tables only; matplotlib is not needed then")


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
