"""Does a decode fit on a device, up to which batch and prompt, and what to change if it does not?"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from depcap_jax.checkpoints.devices import choose_dtype
from depcap_jax.checkpoints.dtypes import with_bits
from depcap_jax.decoding.recipes import recipe
from depcap_jax.inspect.accelerators import Accelerator
from depcap_jax.inspect.memory import Memory, as_loaded, estimate
from depcap_jax.models import ModelConfig
from depcap_jax.models.quantization import BITS, Bits

_MOST_ROWS = 1024
"""No larger batch is looked for."""

_as_loaded = functools.cache(as_loaded)


class Asked(NamedTuple):
    """What the memory depends on, each field under its option's name in `depcap info`."""

    dtype: str
    quantize: Bits | None
    batch: int
    prompt_length: int
    gen_length: int
    cache: str
    tensor: int


def needed_memory(config: ModelConfig, asked: Asked, device: Accelerator | None = None) -> Memory:
    """The memory of DepCap as it is asked for; None: on a CPU."""

    def of(layers: int) -> Memory:
        shallow = dataclasses.replace(with_bits(config, asked.quantize), num_layers=layers)
        return estimate(
            _as_loaded(shallow, asked.dtype, device),
            recipe("depcap", cache=asked.cache, gen_length=asked.gen_length),
            batch=asked.batch,
            prompt_length=asked.prompt_length,
            device=device,
            tensor=asked.tensor,
        )

    # All layers are alike, and tracing hundreds of them takes minutes.
    one, two = (dataclasses.astuple(of(layers)) for layers in (1, 2))
    return Memory(*(a + (config.num_layers - 1) * (b - a) for a, b in zip(one, two, strict=True)))


def compare(config: ModelConfig, asked: Asked, device: Accelerator) -> dict[str, Any]:
    """What a device has against what is asked for, and what else it would have room for."""

    def needed(asked: Asked) -> int:
        return needed_memory(config, asked, device).peak

    def fits(asked: Asked) -> bool:
        return needed(asked) <= device.most

    def most(name: str, high: int, asked: Asked) -> int:
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
            options = (f"--{name} {value}" for name, value in zip(Asked._fields, other, strict=True))
            new = (option for option, old, value in zip(options, asked, other, strict=True) if old != value)
            changes.append({"options": " ".join(new), "peak": needed(other)})
            if rows == asked.batch:
                break
    return {**known, "fits": False, "changes": changes}


def _other_weights(asked: Asked, half: str) -> Iterator[Asked]:
    """What else the weights could be, the least change first: none, for a smaller batch may do.

    `half` is the device's own dtype of 16 bits.
    """
    yield asked
    if asked.dtype == "float32":
        yield asked._replace(dtype=half)
    if asked.quantize is None:
        yield from (asked._replace(quantize=bits) for bits in BITS)
    yield from (asked._replace(tensor=count) for count in (2, 4, 8) if count > asked.tensor)


def _largest(holds: Callable[[int], bool], high: int) -> int:
    """The largest number up to `high` that something holds of, and of all smaller ones; 0 if of none."""
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
