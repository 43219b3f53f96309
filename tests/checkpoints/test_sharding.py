"""Loading onto a mesh: the table of axes, and eight virtual devices in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from small_checkpoints import REPOSITORY, golden_config, golden_tensors

from depcap_jax.checkpoints.huggingface.keys import entries
from depcap_jax.models.sharding import LOGICAL_AXES


def test_table_covers_every_parameter(family):
    for entry in entries(from_config_json(golden_config(family))):
        name = entry.leaf.split(".", 2)[2] if entry.leaf.startswith("layers.") else entry.leaf
        assert len(LOGICAL_AXES[name]) == golden_tensors(family)[entry.key].ndim


# Arguments: the folder of the published checkpoints and that of the converted ones.
ON_EIGHT_DEVICES = """
import sys
import jax, numpy as np
from jax.sharding import Mesh
from depcap_jax.checkpoints.loading import load
from depcap_jax.models.parameters import get_leaves
from depcap_jax.models.sharding import batch_sharding
from small_checkpoints import golden_forward

assert jax.device_count() == 8
forward = jax.jit(lambda model, ids: model(ids))

def split(leaf):
    return [full // part for full, part in zip(leaf.shape, leaf.sharding.shard_shape(leaf.shape))]

def meshes():
    devices = np.array(jax.devices())
    yield "2x4", jax.make_mesh((2, 4), ("data", "tensor"))  # axes are Explicit unless one says otherwise
    yield "4x2", Mesh(devices.reshape(4, 2), ("data", "tensor"))
    yield "8", Mesh(devices, ("tensor",))  # eight do not divide four heads
    yield "data", Mesh(devices, ("data",))
    yield "other", Mesh(devices.reshape(2, 4), ("x", "y"))
    yield "3", Mesh(devices[:3], ("tensor",))

folders = {family: [f"{folder}/{family}" for folder in sys.argv[1:]] for family in ("llada", "dream")}
for family, places in folders.items():
    ids, golden = golden_forward(family)
    plain = {leaf: np.asarray(value) for leaf, value in get_leaves(load(places[0])[0]).items()}
    for name, mesh in meshes():
        for place in places:
            model, _ = load(place, mesh=mesh)
            leaves = get_leaves(model)
            for leaf, value in leaves.items():
                assert value.sharding.device_set == set(mesh.devices.flat), (name, leaf)
                assert np.array_equal(np.asarray(value), plain[leaf]), (name, leaf)
            q, k = leaves["layers.0.attn.q.kernel"], leaves["layers.0.attn.k.kernel"]
            kv_heads = model.config.num_kv_heads
            tensor = mesh.shape.get("tensor", 1)
            assert split(leaves["embed"]) == [tensor if 512 % tensor == 0 else 1, 1], name
            assert split(leaves["head"]) == [1, tensor if 512 % tensor == 0 else 1], name
            assert split(q) == [1, tensor if 4 % tensor == 0 else 1], name
            assert split(k) == [1, tensor if kv_heads % tensor == 0 else 1], name
            assert split(leaves["layers.1.attn.o.kernel"]) == split(q)[::-1], name
            assert split(leaves["layers.1.ff.down.kernel"]) == [tensor if 160 % tensor == 0 else 1, 1], name
            assert split(leaves["norm.scale"]) == [1], name
            if family == "dream":
                assert split(leaves["layers.0.attn.q.bias"]) == split(q)[1:], name
        rows = jax.device_put(ids, batch_sharding(len(ids), mesh))
        logits = np.asarray(forward(model, rows))
        assert np.abs(logits - golden).max() <= 1e-2, name
        assert (logits.argmax(-1) == golden.argmax(-1)).all(), name
    half, _ = load(places[1], mesh=mesh, dtype="bfloat16")
    assert half.dtype.name == "bfloat16"

# A device never holds more of the embedding than its part, nor does the host while it reads.
from depcap_jax.models import sharding
seen = []
place = sharding.place
def watched(shape, where, read):
    def reading(index):
        part = read(index)
        seen.append(part.size / np.prod(shape))
        return part
    return place(shape, where, reading)
from depcap_jax.checkpoints.huggingface import source
from depcap_jax.checkpoints import storage
source.place = storage.place = watched
for folder in folders["llada"]:
    load(folder, mesh=jax.make_mesh((8,), ("tensor",)))
    assert seen.count(1 / 8) == 8 * (2 + 3 * 3), len(seen)  # embed, head; gate, up, down of three layers
    seen.clear()

# A damaged part is found on a mesh too.
import pathlib, shutil
broken = pathlib.Path(sys.argv[2]).parent / "broken"
shutil.copytree(sys.argv[2] + "/llada", broken)
chunk = next(path for path in broken.rglob("head/c/**/*") if path.is_file())
data = bytearray(chunk.read_bytes()); data[100] ^= 1; chunk.write_bytes(data)
try:
    load(broken, mesh=jax.make_mesh((8,), ("tensor",)))
except ValueError as error:
    assert "'head'" in str(error), error
else:
    raise AssertionError("damage went unseen")
print("all right")
"""


def test_parameters_are_restored_already_sharded(golden_dir, converted_dir):
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": str(REPOSITORY / "tests"),
    }
    result = subprocess.run(
        [sys.executable, "-c", ON_EIGHT_DEVICES, str(golden_dir), str(converted_dir)],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environment,
        timeout=300,
    )
    assert result.stdout == "all right\n", result.stderr
