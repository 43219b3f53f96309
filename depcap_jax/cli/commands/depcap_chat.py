"""`depcap chat`: a conversation."""

from __future__ import annotations

import argparse
import sys

import jax

from depcap_jax.checkpoints.loading import EMBEDDED
from depcap_jax.cli.options import add_generation_arguments, load_generator, sampling_key
from depcap_jax.cli.terminal import err, show

EXAMPLES = """
  depcap chat                                                        # /clear forgets, /quit or Ctrl-D ends
  depcap chat --model path/to/llada-8b --cache none --gen-length 256
  echo "Shuffle these: cat, dog, owl, pig." | depcap chat            # one turn per line
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--turns",
        type=int,
        metavar="N",
        help="earlier turns that the model sees; default: all that fit, and none for the embedded models, "
        "which learned single turns",
    )
    add_generation_arguments(parser, cache="dual-margin")


def run(arguments: argparse.Namespace) -> None:
    """Talks until the input ends."""
    if arguments.turns is not None and arguments.turns < 0:
        raise ValueError(f"--turns must be at least 0, got {arguments.turns}")
    turns = 0 if arguments.turns is None and arguments.model in EMBEDDED else arguments.turns
    generator = load_generator(arguments, chat=True)
    key = sampling_key(arguments)
    answers = 0
    talk: list[dict[str, str]] = []
    while (line := _ask()) is not None:
        if line == "/quit":
            break
        if line == "/clear":
            talk.clear()
        if not line or line == "/clear":
            continue
        talk.append({"role": "user", "content": line})
        talk = talk if turns is None else talk[-2 * turns - 1 :]
        while len(talk) > 1 and not generator.fits(talk):  # an overlong last turn is left to complain about
            talk = talk[2:]
        if _someone_is_there() and not generator.fits(talk):
            err.print("That does not fit into the context: say it in fewer words.")
            talk.pop()
            continue
        answer = show(generator, talk, jax.random.fold_in(key, answers))
        answers += 1
        talk.append({"role": "assistant", "content": answer})


def _ask() -> str | None:
    """The next line of the user; None at the end of the input."""
    try:
        return input("> " if _someone_is_there() else "").strip()
    except EOFError:
        return None


def _someone_is_there() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
