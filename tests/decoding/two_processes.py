"""One of two processes that decode one batch together: `python two_processes.py PORT INDEX`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

process = int(sys.argv[2])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, process)

import golden_runs

import depcap_jax as dc

CONFIG = dc.confidence(gen_length=16, block_length=8, threshold=0.3, cache=dc.DualCache(), stop_at_eos=False)
PROMPTS = np.random.default_rng(0).integers(0, 500, (4, 12)).astype(np.int32)
LENGTHS = np.array([12, 3, 9, 5], np.int32)
FIELDS = ("tokens", "nfe", "commit_step", "status")

assert jax.process_count() == 2
assert jax.device_count() == 8
alone = dc.generate(dc.load(golden_runs.GOLDEN / "llada")[0], PROMPTS, LENGTHS, config=CONFIG)
mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto))
model, _ = dc.load(golden_runs.GOLDEN / "llada", mesh=mesh)
rows = NamedSharding(mesh, P("data"))


def split(x: np.ndarray) -> jax.Array:
    """Each process brings the rows that its devices hold: two of the four."""
    mine = x[2 * process : 2 * process + 2]
    return jax.make_array_from_process_local_data(rows, mine, x.shape)


ids, lengths = split(PROMPTS), split(LENGTHS)
assert not ids.is_fully_addressable
together = dc.generate(model, ids, lengths, config=CONFIG)
for field in FIELDS:
    expected = np.asarray(getattr(alone, field))
    for shard in getattr(together, field).addressable_shards:
        np.testing.assert_array_equal(shard.data, expected[shard.index], field)
assert not together.status.is_fully_addressable
dc.raise_for_status(together)
everything = multihost_utils.process_allgather(together.tokens, tiled=True)
np.testing.assert_array_equal(everything, alone.tokens)
print("split: same")

# A wrong length in row 1, which process 0 holds: it says so, and the other goes on.
wrong = dc.generate(model, ids, split(np.array([12, 99, 9, 5], np.int32)), config=CONFIG)
if process == 0:
    with pytest.raises(dc.DecodeError, match="row 1: the prompt"):
        dc.raise_for_status(wrong)
else:
    dc.raise_for_status(wrong)
print("status: own rows")

# Every process brings the whole batch: so it gets the whole answer.
whole = dc.generate(model, PROMPTS, LENGTHS, config=CONFIG)
for field in FIELDS:
    np.testing.assert_array_equal(getattr(whole, field), getattr(alone, field), field)
dc.raise_for_status(whole)
print("whole: same")
