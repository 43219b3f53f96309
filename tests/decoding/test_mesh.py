"""`generate` on a mesh: weights split over `tensor`, rows over `data`, the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PROGRAM = """
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import depcap_jax as dc

assert jax.device_count() == 8
family = {family!r}
config = dc.recipe("depcap", cache="dual", gen_length=24, l_min=4, l_max=16, tau_low=0.5, stop_at_eos=False)
ids = np.random.default_rng(0).integers(0, 500, (4, 16)).astype(np.int32)
lengths = np.array([16, 3, 9, 12], np.int32)
alone = dc.generate(dc.load("golden/" + family)[0], ids, lengths, config=config)

mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto, AxisType.Auto))
model, _ = dc.load("golden/" + family, mesh=mesh)
assert model.layers[0].ff.up.kernel[...].sharding.spec == P(None, "tensor")
rows = NamedSharding(mesh, P("data"))
on_mesh = jax.jit(lambda m, i, n: dc.generate(m, i, n, config=config))(
    model, jax.device_put(ids, rows), jax.device_put(lengths, rows)
)
for field in ("tokens", "nfe", "block_sizes", "commit_step", "status"):
    np.testing.assert_array_equal(getattr(on_mesh, field), getattr(alone, field))
print("same")
"""


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_eight_devices_give_the_answers_of_one(family):
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(family=family)],
        cwd=TESTS,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.stdout.strip() == "same", run.stderr[-2000:]
