"""`generate` on a mesh, and mapped over its devices: the same answers."""

from __future__ import annotations

import functools
from typing import Any

import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from small_models import small_model

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


SMALL: dict[str, Any] = {"gen_length": 8, "l_min": 2, "l_max": 4, "tau_low": 0.3, "stop_at_eos": False}


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("config", "trace"),
    [(dc.depcap(cache=dc.DualCache(), **SMALL), True), (dc.depcap(temperature=0.5, **SMALL), False)],
)
def test_rows_that_are_mapped_over_devices_are_decoded_as_without(config, trace):
    """Under `shard_map`, which checks what varies; each row has a key of its own."""
    model = small_model("dream", num_layers=2)
    keys = jax.random.split(jax.random.key(0), 4)
    expected = dc.generate(model, PROMPTS, LENGTHS, config=config, key=keys, trace=trace)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    @jax.jit
    @functools.partial(jax.shard_map, mesh=mesh, in_specs=(P(), *[P("data")] * 3), out_specs=P("data"))
    def mapped(model, ids, lengths, keys):
        return dc.generate(model, ids, lengths, config=config, key=keys, trace=trace)

    result = mapped(model, PROMPTS, LENGTHS, keys)
    for field in ("tokens", "nfe", "block_sizes", "commit_step", "status"):
        np.testing.assert_array_equal(getattr(result, field), getattr(expected, field))
    if trace:
        np.testing.assert_array_equal(result.trace.guess, expected.trace.guess)


@pytest.mark.parametrize("recipe", dc.RECIPES)
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_every_decoder_has_the_types_that_a_map_over_devices_wants(recipe, cache):
    """Traced only. The model's weights, or the prompts, or both differ by device."""
    own = {"delimiter_ids": (5,)} if recipe == "adablock" else {}
    config = dc.recipe(recipe, cache=cache, gen_length=8, **own)
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    model = small_model("llada")

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), P("data"), P("model")), out_specs=P(("data", "model"))
    )
    def mapped(model, ids, factor):
        model = jax.tree.map(lambda leaf: leaf * factor[0], model)
        return dc.generate(model, ids, config=config).tokens

    tokens = jax.eval_shape(mapped, model, jnp.zeros((4, 6), jnp.int32), jnp.ones(2))
    assert tokens.shape == (8, 8)
