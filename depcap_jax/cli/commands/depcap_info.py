"""`depcap info`: what a model is, the memory it needs, and whether a device has it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import warnings
from collections.abc import Iterator
from typing import Any

from depcap_jax.checkpoints.dtypes import with_bits
from depcap_jax.cli.options import add_model_arguments, hints
from depcap_jax.decoding.recipes import CACHES
from depcap_jax.inspect.accelerators import ACCELERATORS, MORE_MEMORY
from depcap_jax.inspect.fitting import Asked, compare, needed_memory
from depcap_jax.inspect.memory import count_parameters
from depcap_jax.text.batching import answer_length

EXAMPLES = """
  depcap info
  depcap info --model GSAI-ML/LLaDA-8B-Instruct --device l4 --batch 8 --prompt-length 1024
  depcap info --model path/to/config.json --device v5e --tensor 8
  depcap info --model tiny-dream --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    sources = "a folder, a config.json, or ORG/NAME[@REVISION] on the hub, of which no weights are fetched"
    add_model_arguments(parser, sources, dtype="to compute in")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--prompt-length", type=int, metavar="N", help="default: 128, or half the context")
    parser.add_argument("--gen-length", type=int, metavar="N", help="default: 256, or half the context")
    parser.add_argument("--cache", choices=CACHES, default="dual-margin", help="default: %(default)s")
    parser.add_argument("--device", choices=list(ACCELERATORS), help="tell whether it has the memory")
    parser.add_argument(
        "--tensor", type=int, default=1, metavar="N", help="devices to split it over; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(arguments: argparse.Namespace) -> None:
    """Prints it."""
    facts = tell(arguments)
    if arguments.json:
        print(json.dumps(facts))
        return
    config, memory = facts["config"], facts["memory"]
    heads = (
        f"{config['num_heads']} heads of {config['head_dim']}, {config['num_kv_heads']} for keys and values"
    )
    each = f" on each of {facts['tensor']} devices" if facts["tensor"] > 1 else ""
    rows = {
        "model": f"{facts['model']}: {config['family']}, {facts['parameters']:,} weights in "
        f"{facts['quantize'] or facts['dtype']}",
        "layers": f"{config['num_layers']} of width {config['width']}, {heads}",
        "feed-forward": f"{config['ff_width']} wide",
        "vocabulary": f"{config['vocab_size']:,} ids, mask {config['mask_token_id']}, "
        f"end of text {', '.join(map(str, config['eos_token_ids']))}",
        "predicts": "the next position" if config["predicts_next"] else "the position itself",
        "context": f"{config['max_length']:,} positions",
        "tokenizer": facts["tokenizer"],
        "memory": f"{_size(memory['total'])}{each} for {facts['batch']} x ({facts['prompt_length']} prompt + "
        f"{facts['gen_length']} answer), cache {facts['cache']}: weights {_size(memory['weights'])}, "
        f"keys and values {_size(memory['cache'])}, work about {_size(memory['work'])}",
    }
    if facts["device"]:
        rows["device"] = f"\n{'':14}".join(_verdict(facts["device"]))
    for name, text in rows.items():
        print(f"{name:14}{text}")


def _verdict(device: dict[str, Any]) -> Iterator[str]:
    """What is known of a device, in lines."""
    has = f"{device['name']}, {_size(device['memory'])}"
    if device["fits"]:
        enough = "enough" if device["fits_by_itself"] else f"so set {MORE_MEMORY}"
        yield f"{has}: it fits; JAX takes {_size(device['share'])} by itself, {enough}"
        yield f"up to batch {device['most_rows']} with this prompt and answer"
        yield f"up to a prompt of {device['longest_prompt']:,} with this batch and answer"
        return
    yield f"{has}: too small for the {_size(device['peak'])} that are needed"
    for change in device["changes"]:
        yield f"it would fit with {change['options']}: {_size(change['peak'])}"
    if not device["changes"]:
        yield "no smaller batch and no mesh of up to 8 devices helps"


def tell(arguments: argparse.Namespace) -> dict[str, Any]:
    """The facts, read from the checkpoint's config; its weights stay where they are."""
    from depcap_jax.checkpoints.devices import choose_dtype
    from depcap_jax.checkpoints.loading import EMBEDDED, describe
    from depcap_jax.checkpoints.tokenizer import load_tokenizer

    source = describe(arguments.model, **hints(arguments))
    config, half = source.config, source.config.max_length // 2
    device = ACCELERATORS.get(arguments.device)
    dtype = arguments.dtype or ("float32" if arguments.model in EMBEDDED else source.dtype)
    if device is not None:
        with warnings.catch_warnings(action="ignore"):  # the dtype is told anyway
            dtype = choose_dtype(arguments.dtype, dtype, device)
    asked = Asked(
        dtype=dtype,
        quantize=with_bits(config, arguments.quantize).quantize,
        batch=arguments.batch,
        prompt_length=min(128, half) if arguments.prompt_length is None else arguments.prompt_length,
        gen_length=answer_length(config.max_length) if arguments.gen_length is None else arguments.gen_length,
        cache=arguments.cache,
        tensor=arguments.tensor,
    )
    memory = needed_memory(config, asked, device)
    tokenizer = load_tokenizer(source.tokenizer_folder)
    template = "with" if getattr(tokenizer, "chat_template", None) else "without"
    return {
        "model": str(arguments.model),
        "parameters": count_parameters(config),
        "config": config.to_dict(),
        "tokenizer": "none" if tokenizer is None else f"{len(tokenizer):,} tokens, {template} chat template",
        **asked._asdict(),
        "memory": {**dataclasses.asdict(memory), "total": memory.total},
        "device": None if device is None else compare(config, asked, device),
    }


def _size(count: int) -> str:
    """Bytes for people."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = next((i for i in range(len(units)) if count < 1000 ** (i + 1)), len(units) - 1)
    return f"{count / 1000**power:,.{0 if power == 0 else 1}f} {units[power]}"
