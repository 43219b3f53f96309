"""What runs where? Memory, operations and bytes of LLaDA-8B and Dream-7B on devices that are not here.

    python -m benchmarks.where RECORDS.jsonl --device v5e --target v5e:2x4 --chips 8
    python -m benchmarks.where RECORDS.jsonl

compiles the whole of `generate`, and single passes, for a target (as `python -m benchmarks.programs` does),
adds a line for each model and batch to the file, and prints the tables of all that is in it. Nothing is
run: memory is what the compiler plans, tokens per second are a roofline's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

import depcap_jax as dc
from benchmarks.compiling import MODELS, Target, cost
from depcap_jax.checkpoints.devices import has_bfloat16, has_fused_attention
from depcap_jax.checkpoints.dtypes import DTYPES
from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.inspect.accelerators import ACCELERATORS, Accelerator
from depcap_jax.inspect.memory import Memory, as_decoded, as_loaded, estimate
from depcap_jax.models.config import ModelConfig
from depcap_jax.models.parameters import on_mesh

PROMPT = GEN = 256
CANVAS = PROMPT + GEN
CACHE = "dual-margin"

# Forward passes per answer of 256 positions, of DepCap on HumanEval (0-shot) in the paper's Table 1. How many
# of them are block starts it does not say: blocks of 32 would make 8.
PASSES = {"llada-8b": 74.8, "dream-7b": 125.3}
STARTS = 8


class Cost(NamedTuple):
    """Of one program, on each device."""

    operations: float
    bytes: float

    def seconds(self, device: Accelerator) -> float:
        """No less than this: the roofline."""
        return max(self.operations / device.flops, self.bytes / device.bandwidth)


def main() -> None:
    """Measures what is asked for and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("records", type=Path)
    parser.add_argument("--device", choices=ACCELERATORS)
    parser.add_argument("--target", help="v5e:1x1 and the like, or the file that describes a GPU")
    parser.add_argument("--chips", type=int, default=1)
    parser.add_argument("--models", nargs="+", choices=PASSES, default=list(PASSES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    chosen = parser.parse_args()
    known = [json.loads(line) for line in chosen.records.open()] if chosen.records.exists() else []
    if chosen.device:
        try:
            target = Target.find(chosen.target, chosen.chips)
        except ValueError as error:
            parser.error(str(error))
        for name in chosen.models:
            for batch in chosen.batches:
                if any(_key(record) == (chosen.device, chosen.chips, name, batch) for record in known):
                    continue
                record = measure(target, chosen.device, chosen.chips, name, batch)
                known.append(record)
                with chosen.records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    print("\n".join(tables(sorted(known, key=_key))))


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["device"], record["chips"], record["model"], record["batch"]


def measure(target: Target, device: str, chips: int, name: str, batch: int) -> dict[str, Any]:
    """What the compiler plans for `generate`, and what its parts cost."""
    accelerator, config = ACCELERATORS[device], MODELS[name]
    dtype = "bfloat16" if has_bfloat16(accelerator) else "float16"
    model = as_loaded(config, dtype, accelerator)
    decoder = as_decoded(dc.recipe("depcap", cache=CACHE, gen_length=GEN), accelerator)
    told = estimate(model, decoder, batch=batch, prompt_length=PROMPT, device=accelerator, tensor=chips)
    begin = time.process_time()
    lowered = target.lower_generate(on_mesh(model, target.mesh), decoder, batch, PROMPT)
    try:
        memory: Any = lowered.compile().memory_analysis()
        planned = {"weights": memory.argument_size_in_bytes, "other": memory.temp_size_in_bytes}
    except jax.errors.JaxRuntimeError as error:  # compilers for TPUs refuse what does not fit
        planned = {"refused": str(error)}
    cache: Any = decoder.cache
    rows = dict(zip(*cache.widths(model, decoder.sizes, batch, CANVAS), strict=True))
    narrowest = min(rows)
    return {
        "device": device,
        "chips": chips,
        "model": name,
        "dtype": dtype,
        "batch": batch,
        "planned": planned,
        "estimated": dataclasses.asdict(told),
        "passes": {"full": batch // rows[CANVAS], "step": batch // rows[narrowest]},
        "cost": {
            "full": measure_layers(target, config, accelerator, dtype, CANVAS, rows[CANVAS]),
            "step": measure_layers(target, config, accelerator, dtype, narrowest, rows[narrowest]),
            "head": measure_head(target, config, dtype, batch),
        },
        "compile seconds": round(time.process_time() - begin),
    }


def measure_layers(
    target: Target, config: ModelConfig, device: Accelerator, dtype: str, width: int, rows: int
) -> Cost:
    """A pass over `width` positions of `rows` rows: that of one layer and of two tell that of all."""

    def of(layers: int) -> Cost:
        model = dc.Transformer.abstract(dataclasses.replace(config, num_layers=layers), dtype=DTYPES[dtype])
        model.fused_attention = has_fused_attention(device, dtype)
        # Of the embedding a pass reads its tokens' rows alone.
        rows_of: Any = jax.ShapeDtypeStruct((rows * width, config.width), DTYPES[dtype])
        model.embed = nnx.Param(rows_of)
        heads = [None, None, "tensor"] if model.fused_attention else [None, "tensor"]
        split = PartitionSpec(*([] if config.num_kv_heads % target.mesh.size else heads))
        kv = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=NamedSharding(target.mesh, split)
            ),
            jax.eval_shape(lambda m: m.init_cache(rows, CANVAS), model),
        )

        def run(model: dc.Transformer, tokens: jax.Array, start: jax.Array, kv: Any) -> Any:
            return model.hidden(tokens, start=None if width == CANVAS else start, cache=kv)

        where = target.whole([jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((rows, width), (rows,))])
        jitted = jax.jit(run, donate_argnums=3)
        return Cost(*cost(target.lower(jitted, on_mesh(model, target.mesh), *where, kv).compile()))

    one, two = of(1), of(2)
    return Cost(*(a + (config.num_layers - 1) * (b - a) for a, b in zip(one, two, strict=True)))


def measure_head(target: Target, config: ModelConfig, dtype: str, batch: int) -> Cost:
    """The head, read at a tile of positions of each row."""
    model = dc.Transformer.abstract(dataclasses.replace(config, num_layers=1), dtype=DTYPES[dtype])
    hidden = target.whole(jax.ShapeDtypeStruct((batch, TILE, config.width), DTYPES[dtype]))

    @jax.jit
    def run(model: dc.Transformer, hidden: jax.Array) -> jax.Array:
        return jnp.max(model.logits(hidden), axis=-1)

    return Cost(*cost(target.lower(run, on_mesh(model, target.mesh), hidden).compile()))


def turns(record: dict[str, Any]) -> tuple[Cost, Cost, float]:
    """Of all rows: a turn at a block start and one inside a block, and the roofline's tokens per second."""
    parts = {name: Cost(*found) for name, found in record["cost"].items()}
    device, passes = ACCELERATORS[record["device"]], record["passes"]
    tiles = {"full": GEN // TILE, "step": 1}  # a block start looks at the whole window, a block is in a tile

    def turn(kind: str) -> tuple[Cost, float]:
        times = ((parts[kind], passes[kind]), (parts["head"], tiles[kind]))
        whole = Cost(*(sum(part[i] * count for part, count in times) for i in range(2)))
        return whole, sum(part.seconds(device) * count for part, count in times)

    (start, start_seconds), (step, step_seconds) = turn("full"), turn("step")
    seconds = STARTS * start_seconds + (PASSES[record["model"]] - STARTS) * step_seconds
    return start, step, record["batch"] * GEN / seconds


def tables(records: list[dict[str, Any]]) -> Iterator[str]:
    """Markdown."""
    yield (
        "| device | model | weights | batch | planned: weights | other | estimated | over planned | fits |"
    )
    yield "|---|---|---|---:|---:|---:|---:|---:|---|"
    for record in records:
        told = Memory(**record["estimated"])
        device, planned = ACCELERATORS[record["device"]], record["planned"]
        if "refused" in planned:
            found = ["refused", "", f"{told.total / 1e9:.2f} GB", ""]
        else:
            total = planned["weights"] + planned["other"]
            sizes = (planned["weights"], planned["other"], told.total)
            found = [*(f"{size / 1e9:.2f} GB" for size in sizes), f"{told.total / total:.2f}"]
        fits = "yes" if told.peak <= device.share else "told to" if told.peak <= device.most else "no"
        yield _row(_name(record), record["model"], record["dtype"], record["batch"], *found, fits)
    yield ""
    yield (
        "| device | model | batch | block start: operations | bytes | inside: operations | bytes | tokens/s, "
        "estimate |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for record in records:
        start, step, speed = turns(record)
        sizes = (f"{start.operations / 1e12:.2f} T", f"{start.bytes / 1e9:.1f} GB")
        inside = (f"{step.operations / 1e12:.2f} T", f"{step.bytes / 1e9:.1f} GB")
        yield _row(_name(record), record["model"], record["batch"], *sizes, *inside, f"{speed:.0f}")


def _name(record: dict[str, Any]) -> str:
    chips = f", {record['chips']} chips" if record["chips"] > 1 else ""
    return ACCELERATORS[record["device"]].device_kind + chips


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    main()
