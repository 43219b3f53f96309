"""`depcap completion`: makes a shell complete commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from depcap_jax.cli import build_parser

EXAMPLES = """
  depcap completion bash > ~/.local/share/bash-completion/completions/depcap
  depcap completion zsh > ~/.zfunc/_depcap          # with ~/.zfunc in fpath
"""


# What help texts call paths, and what a shell completes there.
_PATHS = {"F": "FILE", "M": "FILE", "FOLDER": "DIRECTORY", "SOURCE": "DIRECTORY", "TARGET": "DIRECTORY"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> None:
    """Prints the script."""
    parser = build_parser()
    for action in _actions(parser):
        if action.metavar in _PATHS:
            action.complete = getattr(shtab, _PATHS[action.metavar])  # type: ignore[attr-defined]  # shtab's way
    print(shtab.complete(parser, arguments.shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options and arguments of a command and of all commands below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)
