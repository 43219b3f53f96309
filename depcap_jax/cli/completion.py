"""`depcap completion`: makes a shell complete commands and options."""

from __future__ import annotations

import argparse

SUMMARY = "print a shell's completion script"
EXAMPLES = """
  depcap completion bash > ~/.local/share/bash-completion/completions/depcap
  depcap completion zsh > ~/.zfunc/_depcap          # with ~/.zfunc in fpath
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> None:
    """Prints the script."""
    import shtab

    from depcap_jax.cli import build_parser

    print(shtab.complete(build_parser(), arguments.shell))
