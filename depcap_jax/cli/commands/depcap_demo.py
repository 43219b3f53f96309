"""`depcap demo`: the same problems, decoded carefully one token a pass and with DepCap."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.cli.options import build_config, load_model
from depcap_jax.decoding.recipes import CACHES, RECIPES

if TYPE_CHECKING:
    from rich.table import Table

    from depcap_jax.tiny.score import Scores

SUMMARY = "decode held-out problems with vanilla and DepCap, side by side"
EXAMPLES = """
  depcap demo
  depcap demo --model tiny-dream --cache dual
  depcap demo --problems 200 --show 0 --recipes vanilla confidence cap depcap
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--model",
        default="tiny-llada",
        metavar="M",
        help="tiny-llada, tiny-dream, or the folder of a model that learned the task; default: %(default)s",
    )
    parser.add_argument("--dtype", choices=list(DTYPES), help="of the weights; default: as stored")
    parser.add_argument("--problems", type=int, default=16, metavar="N", help="default: %(default)s of 500")
    parser.add_argument(
        "--show", type=int, default=3, metavar="N", help="answers to print; default: %(default)s"
    )
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["vanilla", "depcap"])
    parser.add_argument("--cache", choices=CACHES, default="none", help="default: %(default)s")
    parser.add_argument("--gen-length", type=int, default=128, metavar="N", help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--stop-at-eos",
        action=argparse.BooleanOptionalAction,
        help="end an answer at its end-of-text token (the default), or fill all of it",
    )


def run(arguments: argparse.Namespace) -> None:
    """Decodes, prints the answers and the table."""
    from depcap_jax.cli.terminal import out, working
    from depcap_jax.decoding.policy import check_integer
    from depcap_jax.tiny import held_out
    from depcap_jax.tiny.score import score

    problems = held_out()
    check_integer("--problems", arguments.problems, 1, len(problems))
    check_integer("--show", arguments.show, 0)
    model, tokenizer = load_model(arguments)
    scores: dict[str, Scores] = {}
    for name in dict.fromkeys(arguments.recipes):
        config = build_config(arguments, model, tokenizer, name)
        with working(f"decoding {arguments.problems} problems with {name}"):
            scores[name] = score(
                model, tokenizer, problems[: arguments.problems], config, batch_size=arguments.batch_size
            )
    for index in range(min(arguments.show, arguments.problems)):
        _show(index, scores)
    out.print(_summary(scores))
    out.print(
        f"{arguments.problems} held-out problems, {arguments.model}, cache {arguments.cache}, answers of "
        f"up to {arguments.gen_length} tokens; a pass is one run of the model; compilation is not timed."
    )


def _show(index: int, scores: dict[str, Scores]) -> None:
    from rich.text import Text

    from depcap_jax.cli.terminal import out, verdict

    problem = next(iter(scores.values())).problems[index]
    out.print(Text(problem.prompt, "bold"))
    for name, found in scores.items():
        reply = found.replies[index]
        out.print(Text(f"  {name}, {reply.nfe} passes: ", "dim") + verdict(found.right[index]))
        out.print(Text("\n".join(f"    {line}" for line in reply.text.splitlines())))
    out.print()


def _summary(scores: dict[str, Scores]) -> Table:
    from depcap_jax.cli.terminal import table

    made = table("recipe", "right", "passes an answer", "tokens/s", "speed-up")
    rates = {name: found.tokens / found.seconds for name, found in scores.items()}
    first = next(iter(rates.values()))
    for name, found in scores.items():
        made.add_row(
            name,
            f"{100 * found.accuracy:.1f} %",
            f"{found.passes:.1f}",
            f"{rates[name]:.0f}",
            f"{rates[name] / first:.2f}x",
        )
    return made
