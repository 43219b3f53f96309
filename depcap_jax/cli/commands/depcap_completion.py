"""`depcap completion`: makes a shell complete commands and options."""

from __future__ import annotations

import argparse
import itertools

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
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for action in itertools.chain(*(command._actions for command in commands.choices.values())):
        if action.metavar in _PATHS:
            action.complete = getattr(shtab, _PATHS[action.metavar])  # shtab's way
    print(shtab.complete(parser, arguments.shell))
