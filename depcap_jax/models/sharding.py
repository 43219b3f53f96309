"""Which axis of a mesh each weight is split over: one table, by logical axis names.

A mesh axis that is absent, or that does not divide the logical axis, leaves that axis whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from depcap_jax.models.config import ModelConfig
from depcap_jax.models.quantization import SCALE, summed_axis

LOGICAL_AXES: dict[str, tuple[str | None, ...]] = {
    "embed": ("vocab", None),
    "head": (None, "vocab"),
    "norm.scale": (None,),
    "attn_norm.scale": (None,),
    "ff_norm.scale": (None,),
    "attn.q.kernel": (None, "heads"),
    "attn.k.kernel": (None, "kv_heads"),
    "attn.v.kernel": (None, "kv_heads"),
    "attn.o.kernel": ("heads", None),
    "attn.q.bias": ("heads",),
    "attn.k.bias": ("kv_heads",),
    "attn.v.bias": ("kv_heads",),
    "attn.q_norm.scale": (None,),
    "attn.k_norm.scale": (None,),
    "ff.gate.kernel": (None, "ff"),
    "ff.up.kernel": (None, "ff"),
    "ff.down.kernel": ("ff", None),
}
"""The logical axes of each weight, by its dotted name without `layers.{i}.`; stacked ones have one more."""


def weight_sharding(name: str, config: ModelConfig, mesh: Mesh | AbstractMesh) -> NamedSharding:
    """How the weight with dotted name `name` lies on `mesh`.

    "layers.0.attn.q.kernel" is of one layer, "layers.attn.q.kernel" of all, whose stack is not split.
    """
    mesh = auto_mesh(mesh)
    in_layers = name.removeprefix("layers.")
    weight = re.sub(r"^\d+\.", "", in_layers)
    stacked = name != in_layers == weight
    axes = (*[None] * stacked, *_logical_axes(weight))
    # Heads of queries may be cut in two: the compiler then gathers the queries, which are small, while their
    # kernels, which are not, stay split. Keys and values would be gathered for each product: they stay whole.
    sizes = {
        "vocab": config.embedding_size,
        "heads": config.num_heads * config.head_dim,
        "kv_heads": config.num_kv_heads,
        "ff": config.ff_width,
    }
    count = mesh.shape.get("tensor", 0)
    split = ("tensor" if axis and count and sizes[axis] % count == 0 else None for axis in axes)
    return NamedSharding(mesh, PartitionSpec(*split))


def _logical_axes(weight: str) -> tuple[str | None, ...]:
    """Of a weight, or of its scales: those of groups are not split, they are small."""
    name = weight.removesuffix(SCALE)
    summed = summed_axis(name) if name != weight else None
    return tuple(None if number == summed else axis for number, axis in enumerate(LOGICAL_AXES[name]))


def auto_mesh(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """The same devices with Auto axes: the compiler, not the model, places the activations."""
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=auto)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)


def place(
    shape: tuple[int, ...], sharding: Sharding, read: Callable[[tuple[slice, ...]], np.ndarray]
) -> jax.Array:
    """An array whose parts are read and put on their devices one after the other.

    The host holds one part at a time; a part that several devices share is read once.
    """
    devices_of: dict[tuple[tuple[int, int, int], ...], list[Any]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        extent = tuple(part.indices(size) for part, size in zip(index, shape, strict=True))
        devices_of.setdefault(extent, []).append(device)
    parts = []
    for extent, devices in devices_of.items():
        part = read(tuple(slice(*bounds) for bounds in extent))
        parts += [jax.device_put(part, device).block_until_ready() for device in devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)
