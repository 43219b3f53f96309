"""`depcap bench`: what decoding costs beyond its forward passes."""

from __future__ import annotations

import argparse
import itertools

import numpy as np

from depcap_jax.checkpoints.loading import load
from depcap_jax.cli.options import add_hint_arguments, hints
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import CACHES, RECIPES
from depcap_jax.inspect.overhead import measure, random_model
from depcap_jax.text.batching import answer_length

EXAMPLES = """
  depcap bench                                                # a random yardstick model, 512 wide
  depcap bench --model tiny-llada --prompt-length 64 --gen-length 128 --caches none prefix dual
  depcap bench --recipes vanilla depcap --batches 1 4 --repeats 5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--model", metavar="M", help="a name or folder; default: a random yardstick model")
    add_hint_arguments(parser)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["depcap"], help="default: depcap")
    parser.add_argument(
        "--caches", nargs="+", choices=CACHES, default=["none", "dual"], help="default: none dual"
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, default=[1], metavar="N", help="rows decoded together; default: 1"
    )
    parser.add_argument("--prompt-length", type=int, metavar="N", help="default: 128, or half the context")
    parser.add_argument("--gen-length", type=int, metavar="N", help="default: 256, or half the context")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="how often each pair is measured; default: 3"
    )


def run(arguments: argparse.Namespace) -> None:
    """Prints the table, one line at a time, on random prompts."""
    for batch in arguments.batches:
        check_integer("--batches", batch, 1)
    check_integer("--repeats", arguments.repeats, 1)
    model = random_model() if arguments.model is None else load(arguments.model, **hints(arguments))[0]
    context = model.config.max_length
    prompt_length = min(128, context // 2) if arguments.prompt_length is None else arguments.prompt_length
    gen_length = answer_length(context) if arguments.gen_length is None else arguments.gen_length
    check_integer("--prompt-length", prompt_length, 1, context - 1)
    check_integer("--gen-length", gen_length, 1, context - prompt_length)
    columns = f"{'recipe':12}{'cache':14}{'batch':>5}{'turns':>7}{'tokens/s':>10}{'whole / bare passes':>21}"
    print(f"{columns}{'/ ideal passes':>16}{'useful':>9}", flush=True)
    rng, repeats = np.random.default_rng(0), arguments.repeats
    for batch in arguments.batches:
        ids = rng.integers(0, model.config.mask_token_id, (batch, prompt_length), dtype=np.int32)
        for recipe, cache in itertools.product(arguments.recipes, arguments.caches):
            row = measure(model, ids, recipe, cache=cache, gen_length=gen_length, repeats=repeats)
            rate = batch * gen_length / row.seconds
            print(
                f"{recipe:12}{cache:14}{batch:5}{row.passes:7}{rate:10.1f}{row.ratio:21.3f}"
                f"{row.ideal_ratio:16.3f}{row.useful:9.2f}",
                flush=True,
            )
