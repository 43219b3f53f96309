"""`depcap info`: what a model is, and the memory it needs."""

from __future__ import annotations

import argparse
import json
from typing import Any

from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.cli.options import DEFAULT_MODEL, add_hint_arguments, hints
from depcap_jax.decoding.recipes import CACHES, recipe
from depcap_jax.text.batching import answer_length

EXAMPLES = """
  depcap info
  depcap info --model path/to/llada-8b --batch 8 --prompt-length 1024 --gen-length 256 --cache dual
  depcap info --model tiny-dream --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="M", help="default: %(default)s")
    parser.add_argument("--dtype", choices=list(DTYPES), help="to compute in; default: as stored")
    add_hint_arguments(parser)
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--prompt-length", type=int, metavar="N", help="default: 128, or half the context")
    parser.add_argument("--gen-length", type=int, metavar="N", help="default: 256, or half the context")
    parser.add_argument("--cache", choices=CACHES, default="dual", help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """Prints it."""
    facts = describe(arguments)
    if arguments.json:
        print(json.dumps(facts))
        return
    config, memory = facts["config"], facts["memory"]
    heads = (
        f"{config['num_heads']} heads of {config['head_dim']}, {config['num_kv_heads']} for keys and values"
    )
    rows = {
        "model": f"{facts['model']}: {config['family']}, {facts['parameters']:,} weights in {facts['dtype']}",
        "layers": f"{config['num_layers']} of width {config['width']}, {heads}",
        "feed-forward": f"{config['ff_width']} wide",
        "vocabulary": f"{config['vocab_size']:,} ids, mask {config['mask_token_id']}, "
        f"end of text {', '.join(map(str, config['eos_token_ids']))}",
        "predicts": "the next position" if config["predicts_next"] else "the position itself",
        "context": f"{config['max_length']:,} positions",
        "tokenizer": facts["tokenizer"],
        "memory": f"{_size(memory['total'])} for {facts['batch']} x ({facts['prompt_length']} prompt + "
        f"{facts['gen_length']} answer), cache {facts['cache']}: weights {_size(memory['weights'])}, "
        f"keys and values {_size(memory['cache'])}, work about {_size(memory['work'])}",
    }
    for name, text in rows.items():
        print(f"{name:14}{text}")


def describe(arguments: argparse.Namespace) -> dict[str, Any]:
    """The facts, read from the checkpoint's config; its weights stay on disk."""
    import dataclasses

    from depcap_jax.checkpoints.loading import EMBEDDED, open_checkpoint
    from depcap_jax.checkpoints.tokenizer import load_tokenizer
    from depcap_jax.inspect.memory import count_parameters, estimate

    source = open_checkpoint(arguments.model, **hints(arguments))
    config, half = source.config, source.config.max_length // 2
    gen_length = answer_length(config.max_length) if arguments.gen_length is None else arguments.gen_length
    prompt_length = min(128, half) if arguments.prompt_length is None else arguments.prompt_length
    stored = "float32" if arguments.model in EMBEDDED else source.dtype
    dtype = arguments.dtype or stored
    decoder = recipe("depcap", cache=arguments.cache, gen_length=gen_length)
    memory = estimate(
        config, decoder, batch=arguments.batch, prompt_length=prompt_length, dtype=DTYPES[dtype]
    )
    tokenizer = load_tokenizer(source.tokenizer_folder)
    template = "with" if getattr(tokenizer, "chat_template", None) else "without"
    return {
        "model": str(arguments.model),
        "parameters": count_parameters(config),
        "dtype": dtype,
        "config": config.to_dict(),
        "tokenizer": "none" if tokenizer is None else f"{len(tokenizer):,} tokens, {template} chat template",
        "batch": arguments.batch,
        "prompt_length": prompt_length,
        "gen_length": gen_length,
        "cache": arguments.cache,
        "memory": {**dataclasses.asdict(memory), "total": memory.total},
    }


def _size(count: int) -> str:
    """Bytes for people."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = next((i for i in range(len(units)) if count < 1000 ** (i + 1)), len(units) - 1)
    return f"{count / 1000**power:,.{0 if power == 0 else 1}f} {units[power]}"
