"""`depcap trace`: a decode as a web page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from depcap_jax.cli.options import add_generation_arguments, chosen_decoder, load_model, sampling_key
from depcap_jax.cli.terminal import working
from depcap_jax.decoding.recipes import RECIPES
from depcap_jax.decoding.state import DecodeError, Status
from depcap_jax.inspect.viewer import save
from depcap_jax.text.generator import TextGenerator

EXAMPLES = """
  depcap trace "Shuffle these: cat, dog, owl, pig." -o trace.html
  depcap trace "Write code: add 3, times 2." --compare vanilla -o trace.html       # two recipes side by side
  depcap trace "Name a prime." --model path/to/llada-8b --cache dual --gen-length 256 -o trace.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("prompt", metavar="PROMPT")
    parser.add_argument("-o", "--output", required=True, metavar="F", help="the page, an .html file")
    parser.add_argument("--compare", choices=RECIPES, help="a second recipe beside it, with default settings")
    parser.add_argument("--raw", action="store_true", help="bare text, without a chat template")
    add_generation_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Decodes with the trace on and writes the page."""
    page = Path(arguments.output)
    if not page.parent.is_dir():  # better said now than after the decode
        raise ValueError(f"there is no folder {page.parent} to write {page} into")
    if page.is_dir() or not os.access(page if page.exists() else page.parent, os.W_OK):
        raise ValueError(f"{page} is a folder or cannot be written")
    model, tokenizer = load_model(arguments)
    chosen = {arguments.recipe: arguments}
    if arguments.compare:
        name = arguments.compare if arguments.compare != arguments.recipe else f"{arguments.compare}, default"
        shared = {"cache": arguments.cache, "gen_length": arguments.gen_length}
        chosen[name] = argparse.Namespace(recipe=arguments.compare, **shared)
    replies = {}
    for name, options in chosen.items():
        decoder = chosen_decoder(options, model)
        config = decoder.build(tokenizer, predicts_next=model.config.predicts_next)
        chat, special = False if arguments.raw else None, arguments.special_tokens
        generator = TextGenerator(model, tokenizer, config, chat=chat, special_tokens=special)
        with working(f"decoding with {name}"):
            (replies[name],) = generator.run([arguments.prompt], key=sampling_key(arguments), trace=True)
        if replies[name].status != Status.OK:
            raise DecodeError(replies[name].status.message)
    results = [reply.result for reply in replies.values()]
    save(page, *results, tokenizer=tokenizer, names=list(replies), prompt=arguments.prompt)
    for name, reply in replies.items():
        print(f"{name}: {reply.nfe} forward passes, {len(reply.tokens)} tokens")
    print(f"wrote {page}")
