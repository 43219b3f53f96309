"""`depcap generate`: prompts in, answers out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from depcap_jax.cli.options import add_generation_arguments, load_generator, sampling_key
from depcap_jax.cli.terminal import harmless, show, working
from depcap_jax.decoding.state import DecodeError, Status
from depcap_jax.text.generator import Reply, TextGenerator

EXAMPLES = """
  depcap generate "Ann has 12 apples. Ann buys 3. How many apples does Ann have?"
  depcap generate "Shuffle these: cat, dog, owl, pig." --recipe confidence --threshold 0.5 --stats
  depcap generate --file prompts.txt --json > answers.jsonl         # one prompt per line
  cat essay.txt | depcap generate --whole --model path/to/llada-8b --cache dual --gen-length 512
  depcap generate "Write code: add 3, times 2." --watch             # see it fill in
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="none: standard input is read")
    parser.add_argument(
        "--file", action="append", default=[], metavar="F", help="prompts, one per line; - is standard input"
    )
    parser.add_argument("--whole", action="store_true", help="each file, or standard input, is one prompt")
    parser.add_argument("--json", action="store_true", help="one JSON object per prompt, with what it took")
    parser.add_argument("--stats", action="store_true", help="tokens, passes and speed, on standard error")
    parser.add_argument("--watch", action="store_true", help="show each answer as it is decoded")
    parser.add_argument("--raw", action="store_true", help="bare text, without a chat template")
    parser.add_argument("--batch-size", type=int, default=8, metavar="N", help="default: %(default)s")
    add_generation_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Answers them."""
    if arguments.watch and (arguments.json or arguments.stats):
        raise ValueError("--watch shows each pass to people: leave out --json and --stats")
    prompts = read_prompts(arguments)
    chat = False if arguments.raw else None
    generator = load_generator(arguments, batch_size=arguments.batch_size, chat=chat, progress=None)
    key = sampling_key(arguments)
    if arguments.watch:
        for index, prompt in enumerate(prompts):
            show(generator, prompt, jax.random.fold_in(key, index))
        return
    _answer(generator, prompts, key, arguments)


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """The prompts from the command line, then from the files; from standard input if there are none.

    Raises:
      ValueError: if there is none at all.
      OSError: if a file cannot be read.
    """
    files = arguments.file
    if not arguments.prompts and not files:
        if sys.stdin is None or sys.stdin.isatty():
            raise ValueError('give a prompt, as in depcap generate "Hello!", or --file F')
        files = ["-"]
    prompts = list(arguments.prompts)
    for name in files:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            called = "standard input" if name == "-" else name
            raise ValueError(f"{called} is not a text in UTF-8: {error}") from None
        pieces = [text.strip("\n")] if arguments.whole else text.split("\n")
        prompts += [prompt for prompt in pieces if prompt.strip()]
    if not prompts:
        raise ValueError("there is no prompt in what was given")
    return prompts


def _answer(
    generator: TextGenerator, prompts: Sequence[str], key: jax.Array, arguments: argparse.Namespace
) -> None:
    with working("compiling"):
        compiling = generator.prepare(prompts)
    replies = generator.run(prompts, key=key)
    for prompt, reply in zip(prompts, replies, strict=True):
        print(_as_json(prompt, reply) if arguments.json else harmless(reply.text))
    if arguments.stats:
        tokens, passes = sum(len(reply.tokens) for reply in replies), sum(reply.nfe for reply in replies)
        seconds = sum(reply.seconds for reply in replies)
        print(
            f"{tokens} tokens in {passes} forward passes: {tokens / max(passes, 1):.2f} per pass; "
            f"{seconds:.2f} s, {tokens / seconds:.1f} tokens/s; compiling {compiling:.1f} s",
            file=sys.stderr,
        )
    failed = [(i, reply.status) for i, reply in enumerate(replies) if reply.status != Status.OK]
    for index, status in failed[:1]:
        raise DecodeError(f"prompt {index} ({len(failed)} of {len(prompts)} in all): {status.message}")


def _as_json(prompt: str, reply: Reply) -> str:
    names = ("tokens", "commit_steps", "nfe", "block_sizes", "prompt_length")
    line = {"prompt": prompt, "answer": reply.text, **{name: getattr(reply, name) for name in names}}
    line["status"] = reply.status.name
    # JSON escapes only the control characters below the space.
    late = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
    return json.dumps(line, ensure_ascii=False).translate(late)
