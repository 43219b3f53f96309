"""What the compiler makes of `generate`: seconds, instructions and memory: `python -m benchmarks.programs`.

Weights are shapes only, so any size can be looked at; nothing is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import jax
import jax.numpy as jnp

import depcap_jax as dc
from depcap_jax.decoding.generate import _generate, as_data
from depcap_jax.inspect.overhead import BENCH_CONFIG

LLADA_8B = dataclasses.replace(
    BENCH_CONFIG,
    vocab_size=126464,
    embedding_size=126464,
    width=4096,
    num_heads=32,
    num_kv_heads=32,
    head_dim=128,
    ff_width=12288,
    mask_token_id=126336,
    pad_token_id=126081,
    eos_token_ids=(126081, 126348),
)
MODELS = {"bench": (BENCH_CONFIG, jnp.float32), "llada-8b": (LLADA_8B, jnp.bfloat16)}


def main() -> None:
    """Prints a line per program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="bench")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--prompt-length", type=int, default=128)
    parser.add_argument("--gen-length", type=int, default=256)
    parser.add_argument("--recipes", nargs="+", choices=dc.RECIPES, default=["depcap"])
    parser.add_argument("--caches", nargs="+", default=["none", "prefix", "dual"])
    chosen = parser.parse_args()
    config, dtype = MODELS[chosen.model]
    model = dc.Transformer.abstract(dataclasses.replace(config, num_layers=chosen.layers), dtype=dtype)
    ids = jax.ShapeDtypeStruct((chosen.batch, chosen.prompt_length), jnp.int32)
    lengths = jax.ShapeDtypeStruct((chosen.batch,), jnp.int32)
    print(f"{'recipe':12}{'cache':8}{'trace s':>9}{'compile s':>11}{'instructions':>14}{'temporary MB':>14}")
    for name in chosen.recipes:
        for cache in chosen.caches:
            decoder = dc.recipe(name, cache=cache, gen_length=chosen.gen_length)
            data = jax.eval_shape(lambda decoder=decoder: as_data(decoder))
            begin = time.process_time()
            lowered = _generate.lower(model, ids, lengths, data, None, trace=False)
            traced = time.process_time()
            compiled = lowered.compile()
            done = time.process_time()
            memory = compiled.memory_analysis()
            temporary = memory.temp_size_in_bytes / 1e6 if memory is not None else float("nan")
            lines = len((compiled.as_text() or "").splitlines())
            print(
                f"{name:12}{cache:8}{traced - begin:9.1f}{done - traced:11.1f}{lines:14,}{temporary:14,.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
