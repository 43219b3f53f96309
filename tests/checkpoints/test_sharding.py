"""Loading onto a mesh: the table of axes, and what lies where on eight devices."""

from __future__ import annotations

import shutil

import chex
import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from small_checkpoints import chunk_of, flip_bit, golden_config, golden_forward, golden_tensors

from depcap_jax.checkpoints import storage
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface import source
from depcap_jax.checkpoints.huggingface.config_json import from_config_json
from depcap_jax.checkpoints.huggingface.keys import entries
from depcap_jax.checkpoints.loading import load
from depcap_jax.models.parameters import get_leaves
from depcap_jax.models.sharding import LOGICAL_AXES, auto_mesh

# The sizes that the mesh axis `tensor` splits, as both golden configs have them.
VOCABULARY, QUERIES, FF_WIDTH = 512, 64, 160


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    devices = np.array(jax.devices()[: np.prod(shape)])
    return Mesh(devices.reshape(shape), names)


MESHES = {
    "2x4": lambda: jax.make_mesh((2, 4), ("data", "tensor")),  # axes are Explicit unless one says otherwise
    "4x2": lambda: mesh_of((4, 2), ("data", "tensor")),
    "more than heads": lambda: mesh_of((8,), ("tensor",)),
    "data": lambda: mesh_of((8,), ("data",)),
    "other names": lambda: mesh_of((2, 4), ("x", "y")),
    "divides nothing": lambda: mesh_of((3,), ("tensor",)),
}


@pytest.fixture(params=["hugging_face", "converted"])
def checkpoints(request, golden_dir, converted_dir):
    """The folder with one checkpoint per family, in each layout in turn."""
    return golden_dir if request.param == "hugging_face" else converted_dir


def test_table_covers_every_parameter(family):
    for entry in entries(from_config_json(golden_config(family))):
        name = entry.leaf.split(".", 2)[2] if entry.leaf.startswith("layers.") else entry.leaf
        assert len(LOGICAL_AXES[name]) == golden_tensors(family)[entry.key].ndim


@pytest.mark.parametrize("name", MESHES)
def test_parameters_are_restored_already_sharded(name, family, checkpoints):
    mesh = MESHES[name]()
    model, _ = load(checkpoints / family, mesh=mesh)
    leaves = get_leaves(model)
    chex.assert_trees_all_equal(leaves, get_leaves(golden_runs.model(family)), strict=True)
    for leaf in leaves.values():
        assert leaf.sharding.device_set == set(mesh.devices.flat)

    def parts(leaf: str) -> list[int]:
        shape = leaves[leaf].shape
        shard = leaves[leaf].sharding.shard_shape(shape)
        return [full // part for full, part in zip(shape, shard, strict=True)]

    tensor = mesh.shape.get("tensor", 1)
    vocabulary, heads, kv_heads, ff = (
        tensor if size % tensor == 0 else 1
        for size in (VOCABULARY, QUERIES, model.config.num_kv_heads, FF_WIDTH)
    )
    expected = {
        "embed": [vocabulary, 1],
        "head": [1, vocabulary],
        "norm.scale": [1],
        "layers.0.attn.q.kernel": [1, heads],
        "layers.0.attn.k.kernel": [1, kv_heads],
        "layers.1.attn.o.kernel": [heads, 1],
        "layers.1.ff.down.kernel": [ff, 1],
    }
    if family == "dream":
        expected["layers.0.attn.q.bias"] = [heads]
    assert {leaf: parts(leaf) for leaf in expected} == expected


@jax.jit
def forward(model, ids, tokens):
    hidden, _ = model.hidden(ids)
    return model.logits(hidden), model.token_logits(hidden, tokens)


@pytest.mark.parametrize("name", MESHES)
def test_sharded_model_gives_the_golden_logits(name, family, converted_dir):
    mesh = MESHES[name]()
    model, _ = load(converted_dir / family, mesh=mesh)
    ids, golden = golden_forward(family)
    tokens = golden.argmax(-1)[:, ::5].astype(np.int32)
    rows = "data" if "data" in mesh.shape and len(ids) % mesh.shape["data"] == 0 else None
    arrays = jax.device_put((ids, tokens), NamedSharding(auto_mesh(mesh), PartitionSpec(rows)))
    logits, chosen = map(np.asarray, forward(model, *arrays))
    assert np.abs(logits - golden).max() <= 1e-2
    assert (logits.argmax(-1) == golden.argmax(-1)).all()
    np.testing.assert_allclose(chosen, np.take_along_axis(logits, tokens[:, None, :], axis=-1), atol=1e-4)


def test_parameters_are_cast_on_the_mesh(family, checkpoints):
    model, _ = load(checkpoints / family, mesh=MESHES["4x2"](), dtype="bfloat16")
    assert model.dtype == jnp.bfloat16
    expected = load(checkpoints / family, dtype="bfloat16")[0]
    chex.assert_trees_all_equal(get_leaves(model), get_leaves(expected), strict=True)


def test_host_reads_a_part_at_a_time(checkpoints, monkeypatch):
    """Neither a device nor the host, while it reads, holds more of a parameter than one device's part."""
    shares = []
    place = storage.place

    def watched(shape, sharding, read):
        def reading(index):
            part = read(index)
            shares.append(part.size / np.prod(shape))
            return part

        return place(shape, sharding, reading)

    monkeypatch.setattr(source, "place", watched)
    monkeypatch.setattr(storage, "place", watched)
    load(checkpoints / "llada", mesh=jax.make_mesh((8,), ("tensor",)))
    assert shares.count(1 / 8) == 8 * (2 + 3 * 5)  # embed, head; q, o, gate, up, down of three layers


def test_damage_is_found_on_a_mesh(converted_dir, tmp_path):
    broken = shutil.copytree(converted_dir / "llada", tmp_path / "broken")
    flip_bit(chunk_of(broken, "head"))
    with pytest.raises(CheckpointError, match="'head'"):
        load(broken, mesh=jax.make_mesh((8,), ("tensor",)))
