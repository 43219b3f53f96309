"""`generate` on a mesh: weights split over `tensor`, rows over `data`, the same answers."""

from __future__ import annotations

import golden_runs
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import depcap_jax as dc
from depcap_jax.models.parameters import get_leaves

CONFIG = dc.recipe("depcap", cache="dual", gen_length=24, l_min=4, l_max=16, tau_low=0.5, stop_at_eos=False)
PROMPTS = np.random.default_rng(0).integers(0, 500, (4, 16)).astype(np.int32)
LENGTHS = np.array([16, 3, 9, 12], np.int32)


@pytest.mark.compiler
def test_eight_devices_give_the_answers_of_one(family):
    """Called directly, on prompts that are already split: nothing of them is pulled to the host."""
    assert jax.device_count() == 8
    alone = dc.generate(golden_runs.model(family), PROMPTS, LENGTHS, config=CONFIG)
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto))
    model, _ = dc.load(golden_runs.GOLDEN / family, mesh=mesh)
    assert get_leaves(model)["layers.0.ff.up.kernel"].sharding == NamedSharding(mesh, P(None, "tensor"))
    rows = NamedSharding(mesh, P("data"))
    sharded = jax.device_put(PROMPTS, rows), jax.device_put(LENGTHS, rows)
    on_mesh = dc.generate(model, *sharded, config=CONFIG)
    for field in ("tokens", "nfe", "block_sizes", "commit_step", "status"):
        np.testing.assert_array_equal(getattr(on_mesh, field), getattr(alone, field))
