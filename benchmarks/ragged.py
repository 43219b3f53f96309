"""What a ragged batch wastes: `python -m benchmarks.ragged --help`.

Held-out problems in one batch, decoded with DepCap to their end-of-text tokens: the share of the computed
positions that some row needed, the turns of the loop, tokens of the answers per second, and the time as a
ratio to no cache, for each cache and quorum. Shares and turns are exact; times on shared machines vary by a
tenth.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax
import numpy as np

import depcap_jax as dc
from depcap_jax.inspect.overhead import record_passes, useful
from depcap_jax.tiny import held_out

QUORUMS = (0.0, 0.5, 1.0)


MARGINS = (
    (dc.PrefixCache, {}),
    (dc.PrefixCache, {"margin": 24}),
    (dc.DualCache, {}),
    (dc.DualCache, {"margin": 24}),
    (dc.DualCache, {"margin": 24, "margin_after": 24}),
)


def caches() -> dict[str, dc.Cache]:
    """The caches to compare, by what is printed."""
    named: dict[str, dc.Cache] = {"NoCache": dc.NoCache()}
    for policy, margins in MARGINS:
        for quorum in QUORUMS:
            settings = {**margins, "quorum": quorum}
            name = f"{policy.__name__}({', '.join(f'{key}={value:g}' for key, value in settings.items())})"
            named[name] = policy(**settings)
    return named


def main() -> None:
    """Prints a line per cache and quorum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="tiny-llada", help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="default: %(default)s")
    arguments = parser.parse_args()
    model, tokenizer = dc.load(arguments.model)
    generator = dc.TextGenerator(model, tokenizer, dc.depcap(gen_length=96))
    rows = [generator.encode(problem.prompt) for problem in held_out()[: arguments.rows]]
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.zeros((len(rows), lengths.max()), np.int32)
    for row, prompt in zip(ids, rows, strict=True):
        row[: len(prompt)] = prompt
    configs = {name: dc.depcap(gen_length=96, cache=cache) for name, cache in caches().items()}
    prompts = f"{len(rows)} prompts of {lengths.min()} to {lengths.max()} tokens"
    print(f"{arguments.model}: {prompts}, answers of 96")
    print(f"{'cache':54}{'useful':>8}{'turns':>8}{'tokens/s':>10}{'time':>8}", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    tokens: dict[str, int] = {}
    for repeat in range(arguments.repeats + 1):  # the first compiles
        for name, config in configs.items():
            begin = time.perf_counter()
            result = jax.block_until_ready(dc.generate(model, ids, lengths, config=config))
            tokens[name] = int(result.lengths.sum())
            if repeat:
                seconds[name].append(time.perf_counter() - begin)
    for name, config in configs.items():
        steps = list(record_passes(model, ids, config, lengths))
        ratio = statistics.median(a / b for a, b in zip(seconds[name], seconds["NoCache"], strict=True))
        rate = tokens[name] / statistics.median(seconds[name])
        print(f"{name:54}{useful(steps):8.2f}{len(steps):8}{rate:10.1f}{ratio:8.2f}", flush=True)


if __name__ == "__main__":
    main()
