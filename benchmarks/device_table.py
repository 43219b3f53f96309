"""What LLaDA-8B and Dream-7B ask of accelerators that are not here: `python -m benchmarks.device_table`.

The whole of `generate` is compiled for each row of the table, with shapes for weights; that gives the memory.
A line of JSON per row is kept in `benchmarks/devices.jsonl`: what is in it is not compiled again.

Operations and bytes are counted from shapes (`count_pass`), of a full pass and of a cached step. A device
needs at best

    seconds of a pass = max(operations / its operations per second, bytes / its bytes per second)
    tokens per second = rows * answer / (full passes * their seconds + steps * their seconds)

with the peak figures of `depcap_jax.inspect.accelerators`. That is an estimate, and a ceiling for so many
passes: launching kernels, traffic between chips and what selection and partition compute are left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

import depcap_jax as dc
from benchmarks.compiling import MODELS, Target
from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.inspect.accelerators import ACCELERATORS
from depcap_jax.inspect.memory import as_decoded, as_loaded
from depcap_jax.models.parameters import on_mesh

KEPT = Path(__file__).with_suffix(".jsonl")
PROMPT, ANSWER = 256, 256
BLOCK = 32
"""Positions of a block, for counting; DepCap's own blocks are 8 to 128 long."""
PASSES = 75
"""For an answer of 256: the DepCap paper's table has 74.8 for LLaDA-8B on GSM8K."""


class Row(NamedTuple):
    """What is compiled, and what for."""

    device: str
    chips: int
    model: str
    dtype: str
    quantize: str | None
    batch: int


ROWS = (
    Row("t4", 1, "llada-8b", "float16", "int8", 1),
    Row("t4", 1, "dream-7b", "float16", "int8", 1),
    Row("l4", 1, "llada-8b", "bfloat16", None, 1),
    Row("a100-40", 1, "llada-8b", "bfloat16", None, 1),
    Row("a100-40", 1, "llada-8b", "bfloat16", None, 8),
    Row("a100-40", 1, "dream-7b", "bfloat16", None, 1),
    Row("h100", 1, "llada-8b", "bfloat16", None, 1),
    Row("v5e", 1, "llada-8b", "bfloat16", "int8", 1),
    Row("v5e", 8, "llada-8b", "bfloat16", None, 1),
    Row("v5e", 8, "dream-7b", "bfloat16", None, 1),
)


class Work(NamedTuple):
    """Of one device, for one pass over all rows."""

    operations: float
    bytes: float

    def seconds(self, device: str) -> float:
        """At best."""
        peak = ACCELERATORS[device]
        return max(self.operations / peak.flops, self.bytes / peak.bandwidth)


def decoder_of(row: Row) -> dc.DecodeConfig:
    """DepCap, as the row's device runs it."""
    decoder = dc.recipe("depcap", cache="dual-margin", gen_length=ANSWER)
    return as_decoded(decoder, ACCELERATORS[row.device])


def compile_row(row: Row) -> dict[str, Any]:
    """The memory that XLA plans on each device, and what compiling took."""
    places = {1: "1x1", 4: "2x2", 8: "2x4"}
    name = f"{row.device}:{places[row.chips]}" if row.device == "v5e" else row.device
    target = Target.find(name, row.chips)
    begin = time.process_time()
    quantize: Any = row.quantize
    config = dataclasses.replace(MODELS[row.model], quantize=quantize)
    model = on_mesh(as_loaded(config, row.dtype, ACCELERATORS[row.device]), target.mesh)
    compiled = target.lower_generate(model, decoder_of(row), row.batch, PROMPT).compile()
    memory: Any = compiled.memory_analysis()
    return {
        **row._asdict(),
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "cpu_seconds": round(time.process_time() - begin),
        "jax": jax.__version__,
    }


def count_pass(row: Row, *, full: bool) -> Work:
    """Operations and bytes of a pass over all rows, on each of the chips, counted from shapes.

    Operations: of products, with two per multiplication, at the widths and in the groups that are compiled.
    Bytes: for each group of rows the weights of all layers and the inputs and outputs of their products; keys
    and values of the canvas; for each turn of the head its weights, and a tile of logits written and read.
    In few bits, a matrix is written in full and read back for each product, as the compiled programs show;
    but for the head on TPUs, whose product converts what it reads.
    """
    config, decoder = MODELS[row.model], decoder_of(row)
    one_layer = dc.Transformer.abstract(dataclasses.replace(config, num_layers=1))
    cache = decoder.cache
    assert isinstance(cache, dc.DualCache)
    size = 4 if row.dtype == "float32" else 2
    canvas = PROMPT + ANSWER
    span = canvas if full else BLOCK + cache.margin + cache.margin_after
    widths = cache.widths(one_layer, decoder.sizes, row.batch, canvas)
    width, rows = next((w, r) for w, r in zip(*widths, strict=True) if w >= span)
    groups, positions = math.ceil(row.batch / rows), width * rows
    turns = math.ceil((decoder.sizes.window if full else BLOCK) / TILE)

    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    kv_split = row.chips if config.num_kv_heads % row.chips == 0 else 1
    queries = config.width * heads / row.chips
    keys = config.width * kv_heads / kv_split
    ff = config.width * config.ff_width / row.chips
    layer = 2 * queries + 2 * keys + 3 * ff
    head = config.width * config.embedding_size / row.chips
    stored = {None: size, "int8": 1, "int4": 0.5}[row.quantize]
    in_full = 0 if row.quantize is None else 2 * size
    of_head = stored if ACCELERATORS[row.device].platform == "tpu" else stored + in_full

    # Heads that do not divide are computed on every chip.
    attention = 2 * 2 * positions * canvas * heads / (row.chips if config.num_heads % row.chips == 0 else 1)
    products = groups * config.num_layers * (2 * positions * layer + attention)
    tile = row.batch * TILE
    inner = 2 * heads / row.chips + 2 * kv_heads / kv_split + 3 * config.ff_width / row.chips
    edges = positions * (6 * config.width + inner) * size
    kept = 2 * rows * (canvas + width) * kv_heads / kv_split * size
    moved = groups * config.num_layers * (layer * (stored + in_full) + edges + kept)
    logits = 2 * 4 * tile * config.embedding_size / row.chips
    return Work(products + turns * 2 * tile * head, moved + turns * (head * of_head + logits))


def tokens_per_second(row: Row) -> float:
    """At best: the roofline's estimate."""
    blocks = ANSWER // BLOCK
    full, step = (count_pass(row, full=full).seconds(row.device) for full in (True, False))
    return row.batch * ANSWER / (blocks * full + (PASSES - blocks) * step)


def print_table(lines: list[dict[str, Any]]) -> None:
    """As the docs show it."""
    print(
        "| device | model | weights | rows | memory, GB | full pass: T operations, GB, ms "
        "| cached step: the same | tokens/s, at best |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    kept = {tuple(line[name] for name in Row._fields): line for line in lines}
    for row in (row for row in ROWS if row in kept):
        device = f"{row.chips} x {row.device}" if row.chips > 1 else row.device
        line = kept[row]
        memory = f"{line['arguments'] / 1e9:.2f} + {line['temporary'] / 1e9:.2f}"
        passes = [
            f"{work.operations / 1e12:.2f}, {work.bytes / 1e9:.1f}, {1e3 * work.seconds(row.device):.1f}"
            for work in (count_pass(row, full=True), count_pass(row, full=False))
        ]
        cells = device, row.model, row.quantize or row.dtype, row.batch, memory, *passes
        print(f"| {' | '.join(map(str, cells))} | {tokens_per_second(row):,.0f} |")


def main() -> None:
    """Compiles what is missing, then prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_table", description=__doc__)
    parser.add_argument("--most", type=int, default=len(ROWS), help="compile no more rows than this")
    chosen = parser.parse_args()
    lines = [json.loads(text) for text in KEPT.read_text().splitlines()] if KEPT.exists() else []
    known = {tuple(line[name] for name in Row._fields) for line in lines}
    for row in [row for row in ROWS if tuple(row) not in known][: chosen.most]:
        lines.append(compile_row(row))
        with KEPT.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    print_table(lines)


if __name__ == "__main__":
    main()
