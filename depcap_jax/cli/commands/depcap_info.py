"""`depcap info`: what a model is, the memory it needs, and whether a device has it."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from depcap_jax.checkpoints.dtypes import DTYPES, with_bits
from depcap_jax.cli.options import DEFAULT_MODEL, add_hint_arguments, hints
from depcap_jax.decoding.recipes import CACHES, recipe
from depcap_jax.inspect.accelerators import ACCELERATORS, MORE_MEMORY, Accelerator
from depcap_jax.models.quantization import BITS, Bits
from depcap_jax.text.batching import answer_length

if TYPE_CHECKING:
    from depcap_jax.inspect.memory import Memory
    from depcap_jax.models import ModelConfig, Transformer

EXAMPLES = """
  depcap info
  depcap info --model GSAI-ML/LLaDA-8B-Instruct --device l4 --batch 8 --prompt-length 1024
  depcap info --model path/to/config.json --device v5e --tensor 8
  depcap info --model tiny-dream --json
"""

_MOST_ROWS = 1024
"""No larger batch is looked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="M",
        help="tiny-llada, tiny-dream, a folder, a config.json, or ORG/NAME[@REVISION] on the hub, of which "
        "no weights are fetched; default: %(default)s",
    )
    parser.add_argument("--dtype", choices=list(DTYPES), help="to compute in; default: as stored")
    parser.add_argument("--quantize", choices=BITS, help="keep the matrices in few bits; default: as stored")
    add_hint_arguments(parser)
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument("--prompt-length", type=int, metavar="N", help="default: 128, or half the context")
    parser.add_argument("--gen-length", type=int, metavar="N", help="default: 256, or half the context")
    parser.add_argument("--cache", choices=CACHES, default="dual", help="default: %(default)s")
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


class _Asked(NamedTuple):
    """What the memory depends on, each field under its option's name."""

    dtype: str
    quantize: Bits | None
    batch: int
    prompt_length: int
    gen_length: int
    cache: str
    tensor: int


def tell(arguments: argparse.Namespace) -> dict[str, Any]:
    """The facts, read from the checkpoint's config; its weights stay where they are."""
    from depcap_jax.checkpoints.devices import choose_dtype
    from depcap_jax.checkpoints.loading import EMBEDDED, describe
    from depcap_jax.checkpoints.tokenizer import load_tokenizer
    from depcap_jax.inspect.memory import count_parameters

    source = describe(arguments.model, **hints(arguments))
    config, half = source.config, source.config.max_length // 2
    device = ACCELERATORS.get(arguments.device)
    dtype = arguments.dtype or ("float32" if arguments.model in EMBEDDED else source.dtype)
    if device is not None:
        with warnings.catch_warnings(action="ignore"):  # the dtype is told anyway
            dtype = choose_dtype(arguments.dtype, dtype, device)
    asked = _Asked(
        dtype=dtype,
        quantize=with_bits(config, arguments.quantize).quantize,
        batch=arguments.batch,
        prompt_length=min(128, half) if arguments.prompt_length is None else arguments.prompt_length,
        gen_length=answer_length(config.max_length) if arguments.gen_length is None else arguments.gen_length,
        cache=arguments.cache,
        tensor=arguments.tensor,
    )
    memory = _memory(config, asked, device)
    tokenizer = load_tokenizer(source.tokenizer_folder)
    template = "with" if getattr(tokenizer, "chat_template", None) else "without"
    return {
        "model": str(arguments.model),
        "parameters": count_parameters(config),
        "config": config.to_dict(),
        "tokenizer": "none" if tokenizer is None else f"{len(tokenizer):,} tokens, {template} chat template",
        **asked._asdict(),
        "memory": {**dataclasses.asdict(memory), "total": memory.total},
        "device": None if device is None else _compare(config, asked, device),
    }


def _compare(config: ModelConfig, asked: _Asked, device: Accelerator) -> dict[str, Any]:
    """What a device has against what is asked for, and what else it would have room for."""
    from depcap_jax.checkpoints.devices import choose_dtype

    def needed(asked: _Asked) -> int:
        return _memory(config, asked, device).peak

    def fits(asked: _Asked) -> bool:
        return needed(asked) <= device.most

    def most(name: str, high: int, asked: _Asked) -> int:
        return _largest(lambda value: fits(asked._replace(**{name: value})), high)

    peak = needed(asked)
    known = {"name": device.device_kind, "memory": device.memory, "share": device.share, "peak": peak}
    if peak <= device.most:
        context = config.max_length - asked.gen_length
        return {
            **known,
            "fits": True,
            "fits_by_itself": peak <= device.share,
            "most_rows": most("batch", _MOST_ROWS, asked),
            "longest_prompt": most("prompt_length", context, asked),
        }
    changes = []
    with warnings.catch_warnings(action="ignore"):
        half = choose_dtype(None, "bfloat16", device)
    for other in _other_weights(asked, half):
        if rows := most("batch", asked.batch, other):
            other = other._replace(batch=rows)
            options = (f"--{name} {value}" for name, value in zip(_Asked._fields, other, strict=True))
            new = (option for option, old, value in zip(options, asked, other, strict=True) if old != value)
            changes.append({"options": " ".join(new), "peak": needed(other)})
            if rows == asked.batch:
                break
    return {**known, "fits": False, "changes": changes}


def _other_weights(asked: _Asked, half: str) -> Iterator[_Asked]:
    """What else the weights could be, the least change first: none, for a smaller batch may do.

    `half` is the device's own dtype of 16 bits.
    """
    yield asked
    if asked.dtype == "float32":
        yield asked._replace(dtype=half)
    if asked.quantize is None:
        yield from (asked._replace(quantize=bits) for bits in BITS)
    yield from (asked._replace(tensor=count) for count in (2, 4, 8) if count > asked.tensor)


def _memory(config: ModelConfig, asked: _Asked, device: Accelerator | None) -> Memory:
    from depcap_jax.inspect.memory import Memory, estimate

    def of(layers: int) -> Memory:
        shallow = dataclasses.replace(with_bits(config, asked.quantize), num_layers=layers)
        return estimate(
            _model(shallow, asked.dtype, device),
            recipe("depcap", cache=asked.cache, gen_length=asked.gen_length),
            batch=asked.batch,
            prompt_length=asked.prompt_length,
            device=device,
            tensor=asked.tensor,
        )

    # All layers are alike, and tracing hundreds of them takes minutes.
    one, two = (dataclasses.astuple(of(layers)) for layers in (1, 2))
    return Memory(*(a + (config.num_layers - 1) * (b - a) for a, b in zip(one, two, strict=True)))


@functools.cache
def _model(config: ModelConfig, dtype: str, device: Accelerator | None) -> Transformer:
    from depcap_jax.inspect.memory import as_loaded

    return as_loaded(config, dtype, device)


def _largest(holds: Callable[[int], bool], high: int) -> int:
    """The largest number up to `high` that something holds of, and of all smaller ones; 0 if of none."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _size(count: int) -> str:
    """Bytes for people."""
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = next((i for i in range(len(units)) if count < 1000 ** (i + 1)), len(units) - 1)
    return f"{count / 1000**power:,.{0 if power == 0 else 1}f} {units[power]}"
