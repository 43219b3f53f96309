"""One of two processes that decode one batch together: `python two_processes.py PORT INDEX`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))

import golden_runs

import depcap_jax as dc

CONFIG = dc.confidence(gen_length=16, block_length=8, threshold=0.3, cache=dc.DualCache(), stop_at_eos=False)
PROMPTS = np.random.default_rng(0).integers(0, 500, (4, 12)).astype(np.int32)
LENGTHS = np.array([12, 3, 9, 5], np.int32)

assert jax.process_count() == 2
assert jax.device_count() == 4
alone = dc.generate(dc.load(golden_runs.GOLDEN / "llada")[0], PROMPTS, LENGTHS, config=CONFIG)
mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto))
model, _ = dc.load(golden_runs.GOLDEN / "llada", mesh=mesh)
rows = NamedSharding(mesh, P("data"))
ids, lengths = (jax.make_array_from_callback(x.shape, rows, lambda i, x=x: x[i]) for x in (PROMPTS, LENGTHS))
assert not ids.is_fully_addressable
together = dc.generate(model, ids, lengths, config=CONFIG)
for field in ("tokens", "nfe", "commit_step", "status"):
    expected = np.asarray(getattr(alone, field))
    for shard in getattr(together, field).addressable_shards:
        np.testing.assert_array_equal(shard.data, expected[shard.index], field)
print("same")
