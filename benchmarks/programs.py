"""What the compiler makes of `generate`: seconds, instructions and memory: `python -m benchmarks.programs`.

Weights are shapes only, so any size can be looked at; nothing is run.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import depcap_jax as dc
from depcap_jax.decoding.generate import _generate, as_data
from depcap_jax.inspect.overhead import BENCH_CONFIG
from depcap_jax.models.sharding import weight_sharding
from depcap_jax.models.transformer import stack_layers

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
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--prompt-length", type=int, default=128)
    parser.add_argument("--gen-length", type=int, default=256)
    parser.add_argument("--recipes", nargs="+", choices=dc.RECIPES, default=["depcap"])
    parser.add_argument("--caches", nargs="+", default=["none", "prefix", "dual"])
    parser.add_argument(
        "--target",
        help="a device that need not be here: v5e:2x2 and the like (with libtpu), or the file that describes "
        "a GPU as XLA's GpuTargetConfigProto (with JAX's CUDA plugin); default: this machine's CPU",
    )
    parser.add_argument("--devices", type=int, default=1, help="split the weights over this many; default: 1")
    parser.add_argument("--scan-layers", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--fused-attention", action=argparse.BooleanOptionalAction, default=False)
    chosen = parser.parse_args()

    if chosen.target and "/" in chosen.target and not Path(chosen.target).is_file():
        parser.error(f"--target {chosen.target}: no such file")
    platform, devices = find_devices(chosen.target)
    if not 1 <= chosen.devices <= len(devices):
        parser.error(f"--devices {chosen.devices}: there are {len(devices)}")
    mesh = Mesh(np.asarray(devices[: chosen.devices]), ("tensor",))
    config, dtype = MODELS[chosen.model]
    model = dc.Transformer.abstract(dataclasses.replace(config, num_layers=chosen.layers), dtype=dtype)
    model.fused_attention = chosen.fused_attention
    model = place(jax.eval_shape(stack_layers, model) if chosen.scan_layers else model, mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    print(
        f"{'recipe':10}{'cache':8}{'batch':>5}{'trace s':>9}{'compile s':>11}{'wall s':>8}{'lines':>9}"
        f"{'weights GB':>12}{'temporary GB':>14}"
    )
    for name, cache, batch in itertools.product(chosen.recipes, chosen.caches, chosen.batches):
        decoder = dc.recipe(name, cache=cache, gen_length=chosen.gen_length)
        if platform != "cpu":  # what the device would choose; here the default is this machine's
            its: Any = decoder.cache
            decoder = dataclasses.replace(decoder, cache=dataclasses.replace(its, together=512))
        ids = jax.ShapeDtypeStruct((batch, chosen.prompt_length), jnp.int32, sharding=whole)
        lengths = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=whole)
        data = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole),
            jax.eval_shape(lambda decoder=decoder: as_data(decoder)),
        )
        begin = time.process_time()
        traced = _generate.trace(model, ids, lengths, data, None, trace=False)
        lowered = traced.lower(lowering_platforms=(platform,))
        middle, wall = time.process_time(), time.perf_counter()
        compiled = lowered.compile()
        seconds, wall = time.process_time() - middle, time.perf_counter() - wall
        memory: Any = compiled.memory_analysis()
        text = compiled.as_text() or ""
        print(
            f"{name:10}{cache:8}{batch:5}{middle - begin:9.1f}{seconds:11.1f}{wall:8.1f}"
            f"{len(text.splitlines()):9,}{memory.argument_size_in_bytes / 1e9:12.2f}"
            f"{memory.temp_size_in_bytes / 1e9:14.2f}",
            flush=True,
        )


def find_devices(target: str | None) -> tuple[str, Sequence[Any]]:
    """The platform, and its devices, which may be described only."""
    if target is None:
        return "cpu", jax.devices("cpu")
    if Path(target).is_file():
        described = topologies.get_topology_desc(
            platform="cuda",
            topology_name="any",
            target_config=Path(target).read_text(),
            topology="1x1x1",
        )
        return "cuda", described.devices
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    one = {"chips_per_host_bounds": [1, 1, 1]} if target.endswith("1x1") else {}
    return "tpu", topologies.get_topology_desc(platform="tpu", topology_name=target, **one).devices


def place(model: dc.Transformer, mesh: Mesh) -> dc.Transformer:
    """The abstract model, each weight where `load(mesh=mesh)` would put it."""
    graph, state = nnx.split(model)

    def at(path: Any, leaf: Any) -> Any:
        sharding = weight_sharding(".".join(map(str, path)), model.config, mesh)
        return leaf.replace(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding))

    flat = {path: at(path, leaf) for path, leaf in nnx.to_flat_state(state)}
    return nnx.merge(graph, nnx.from_flat_state(flat))


if __name__ == "__main__":
    main()
