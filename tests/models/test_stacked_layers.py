"""One scanned layer in place of a list: the same numbers, whichever way it was loaded, saved or split."""

from __future__ import annotations

import re
from typing import Any

import chex
import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from small_checkpoints import golden_forward

import depcap_jax as dc
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.decoding.generate import _generate
from depcap_jax.models.parameters import get_leaves

LENGTHS = np.array([20, 11])
PROMPTS = np.random.default_rng(3).integers(0, 500, (2, 20))


def equal(model: dc.Transformer, other: dc.Transformer) -> None:
    chex.assert_trees_all_equal(dict(get_leaves(model)), dict(get_leaves(other)), strict=True)


def test_there_and_back(family):
    model = golden_runs.model(family)
    stacked = dc.stack_layers(model)
    assert stacked.is_scanned
    assert not model.is_scanned, "it is another model, not a changed one"
    assert len(jax.tree.leaves(stacked)) < len(jax.tree.leaves(model))
    equal(stacked, model)
    equal(dc.unstack_layers(stacked), model)
    assert dc.stack_layers(stacked) is stacked
    assert dc.unstack_layers(model) is model
    ids, golden = golden_forward(family)
    assert np.abs(np.asarray(stacked(jnp.asarray(ids))) - golden).max() <= 1e-2


def test_loaded_saved_and_exported(family, golden_dir, converted_dir, tmp_path):
    model = golden_runs.model(family)
    for folder in (golden_dir, converted_dir):
        stacked, _ = dc.load(folder / family, scan_layers=True)
        assert stacked.is_scanned
        equal(stacked, model)
    dc.save(stacked, tmp_path / "saved")
    equal(dc.load(tmp_path / "saved")[0], model)
    export(stacked, tmp_path / "exported")
    equal(dc.load(tmp_path / "exported")[0], model)


def test_split_over_devices(converted_dir):
    mesh = jax.make_mesh((4,), ("tensor",))
    model, _ = dc.load(converted_dir / "llada", mesh=mesh, scan_layers=True)
    layers: Any = model.layers
    gate = layers.ff.gate.kernel[...]
    assert gate.sharding.spec == PartitionSpec(None, None, "tensor")
    assert gate.sharding.shard_shape(gate.shape)[2] == gate.shape[2] // 4
    equal(model, golden_runs.model("llada"))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("family", "cache"),
    [("llada", "none"), ("llada", "prefix"), ("llada", "dual"), ("dream", "prefix"), ("dream", "dual")],
)
def test_the_same_tokens(family, cache):
    model = golden_runs.model(family)
    config = dc.recipe(
        "depcap", cache=cache, gen_length=24, l_max=16, l_min=4, tau_low=0.2, stop_at_eos=False
    )
    unrolled, scanned = (
        dc.generate(one, PROMPTS, LENGTHS, config=config) for one in (model, dc.stack_layers(model))
    )
    for field in ("tokens", "nfe", "block_sizes", "commit_step"):
        np.testing.assert_array_equal(getattr(unrolled, field), getattr(scanned, field), field)


@pytest.mark.compiler
def test_the_cache_of_all_layers_is_not_copied():
    model = dc.stack_layers(golden_runs.model("llada"))
    config = dc.recipe("depcap", cache="dual", gen_length=24, l_max=16)
    args = model, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), config, None
    text = _generate.lower(*args, trace=False).compile().as_text() or ""
    sizes = model.config.num_layers, model.config.num_kv_heads, model.config.head_dim, 44
    shape = re.escape(f"f32[2,{','.join(map(str, sizes))}]")
    assert re.search(shape, text)
    assert not [
        name for name in re.findall(rf"= {shape}\S* copy\(%?([\w.-]+)\)", text) if "broadcast" not in name
    ]
