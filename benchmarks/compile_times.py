"""What compiling `generate` takes and makes: `python -m benchmarks.compile_times`.

Seconds, instructions and memory. Weights are shapes only, so any size can be looked at; nothing is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from typing import Any

import jax

import depcap_jax as dc
from benchmarks.compiling import MODELS, Target
from benchmarks.gpus import GPUS
from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.inspect.accelerators import ACCELERATORS
from depcap_jax.inspect.memory import as_decoded
from depcap_jax.models.parameters import on_mesh
from depcap_jax.models.transformer import stack_layers


def main() -> None:
    """Prints a line per program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_times", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="bench")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt-length", type=int, default=128)
    parser.add_argument("--gen-length", type=int, default=256)
    parser.add_argument("--recipes", nargs="+", choices=dc.RECIPES, default=["depcap"])
    parser.add_argument("--caches", nargs="+", default=["none", "prefix", "dual"])
    parser.add_argument(
        "--target",
        help="a device that need not be here: v5e:2x2 and the like (with libtpu), or a GPU (with JAX's CUDA "
        f"plugin): {', '.join(GPUS)}; default: this machine's CPU",
    )
    parser.add_argument("--devices", type=int, default=1, help="split the weights over this many; default: 1")
    parser.add_argument("--scan-layers", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--fused-attention", action=argparse.BooleanOptionalAction, default=False)
    chosen = parser.parse_args()

    try:
        target = Target.find(chosen.target, chosen.devices)
    except ValueError as error:
        parser.error(str(error))
    config = dataclasses.replace(MODELS[chosen.model], num_layers=chosen.layers)
    model = dc.Transformer.abstract(config, dtype=DTYPES[chosen.dtype])
    model.fused_attention = chosen.fused_attention
    model = on_mesh(jax.eval_shape(stack_layers, model) if chosen.scan_layers else model, target.mesh)
    print(
        f"{'recipe':10}{'cache':12}{'batch':>6}{'trace s':>9}{'compile s':>11}{'wall s':>8}{'lines':>9}"
        f"{'weights GB':>12}{'temporary GB':>14}"
    )
    for name, cache, batch in itertools.product(chosen.recipes, chosen.caches, chosen.batches):
        decoder = dc.recipe(name, cache=cache, gen_length=chosen.gen_length)
        if target.platform != "cpu":  # all accelerators choose alike
            decoder = as_decoded(decoder, ACCELERATORS["v5e"])
        begin = time.process_time()
        lowered = target.lower_generate(model, decoder, batch, chosen.prompt_length)
        middle, wall = time.process_time(), time.perf_counter()
        compiled = lowered.compile()
        seconds, wall = time.process_time() - middle, time.perf_counter() - wall
        memory: Any = compiled.memory_analysis()
        text = compiled.as_text() or ""
        print(
            f"{name:10}{cache:12}{batch:6}{middle - begin:9.1f}{seconds:11.1f}{wall:8.1f}"
            f"{len(text.splitlines()):9,}{memory.argument_size_in_bytes / 1e9:12.2f}"
            f"{memory.temp_size_in_bytes / 1e9:14.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
