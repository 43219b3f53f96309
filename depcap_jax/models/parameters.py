"""A model's parameters as a flat mapping from dotted names ("layers.0.attn.q.kernel") to arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from depcap_jax.models.config import ModelConfig
from depcap_jax.models.quantization import SCALE, Bits, Quantized, dequantize, quantize, summed_axis
from depcap_jax.models.sharding import weight_sharding
from depcap_jax.models.transformer import Transformer, stack_layers


@functools.lru_cache(maxsize=16)
def leaf_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of every parameter of a model with this config."""
    return MappingProxyType({name: leaf.shape for name, leaf in get_leaves(_abstract(config)).items()})


def leaf_dtypes(config: ModelConfig, dtype: DTypeLike) -> Mapping[str, np.dtype]:
    """The dtype of every parameter of a model in `dtype`: some are kept in few bits."""
    leaves = get_leaves(_abstract(config)).items()
    is_float = {name: jnp.issubdtype(leaf.dtype, jnp.floating) for name, leaf in leaves}
    return {name: np.dtype(dtype if is_float[name] else leaf.dtype) for name, leaf in leaves}


def quantize_leaf(name: str, leaf: jax.Array, bits: Bits | None) -> dict[str, jax.Array]:
    """A parameter by its dotted name; or its values and scales by theirs, if it is to be kept in few bits."""
    axis = summed_axis(name)
    if bits is None or axis is None:
        return {name: leaf}
    quantized = _quantize(leaf, bits, axis, leaf.dtype)
    return {name: quantized.values, name + SCALE: quantized.scale}


_quantize = jax.jit(quantize, static_argnames=("bits", "axis", "dtype"))


def dequantize_leaf(name: str, leaves: Mapping[str, jax.Array]) -> jax.Array:
    """A parameter as numbers of the model's dtype, however it is kept."""
    axis = summed_axis(name)
    if axis is None or name + SCALE not in leaves:
        return leaves[name]
    return dequantize(Quantized(leaves[name], leaves[name + SCALE]), axis)


def get_leaves(model: Transformer) -> Mapping[str, jax.Array]:
    """The model's parameters by dotted name; those of stacked layers are cut out when they are asked for."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    leaves = {".".join(map(str, path)): leaf.get_value() for path, leaf in flat}
    return _Unstacked(leaves, model.config) if model.is_scanned else leaves


class _Unstacked(Mapping[str, jax.Array]):
    """The names of separate layers over stacked arrays."""

    def __init__(self, leaves: Mapping[str, jax.Array], config: ModelConfig):
        self._leaves, self._names = leaves, leaf_shapes(config)

    def __getitem__(self, name: str) -> jax.Array:
        if not name.startswith("layers."):
            return self._leaves[name]
        _, index, rest = name.split(".", 2)
        return self._leaves[f"layers.{rest}"][int(index)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def with_leaves(config: ModelConfig, leaves: dict[str, Any], *, scan_layers: bool = False) -> Transformer:
    """A model made of these arrays, which are taken out of `leaves`; nothing is initialised.

    With `scan_layers` the layers are stacked (`stack_layers`), one kind of weight after the other, so that
    no more than one of them is there twice.
    """

    def take(name: str, leaf: Any) -> jax.Array:
        if not (scan_layers and name.startswith("layers.")):
            return leaves.pop(name)
        rest = name.removeprefix("layers.")
        return _stack([leaves.pop(f"layers.{index}.{rest}") for index in range(config.num_layers)])

    abstract = _abstract(config)
    return _replaced(jax.eval_shape(stack_layers, abstract) if scan_layers else abstract, take)


def on_mesh(model: Transformer, mesh: Mesh | AbstractMesh) -> Transformer:
    """An abstract model, each weight with the place that `load(mesh=mesh)` gives it."""

    def at(name: str, leaf: Any) -> Any:
        sharding = weight_sharding(name, model.config, mesh)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return _replaced(model, at)


def _replaced(model: Transformer, change: Callable[[str, Any], Any]) -> Transformer:
    """The model with each parameter changed, by its dotted name and what it was."""
    graph, state = nnx.split(model)
    flat = nnx.to_flat_state(state)
    changed = {path: leaf.replace(change(".".join(map(str, path)), leaf)) for path, leaf in flat}
    return nnx.merge(graph, nnx.from_flat_state(changed))


def _stack(layers: list[jax.Array]) -> jax.Array:
    """Along a new first axis, each device stacking what it holds."""
    sharding = layers[0].sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))
    return jax.jit(jnp.stack, out_shardings=sharding)(layers)


@functools.lru_cache(maxsize=16)
def _abstract(config: ModelConfig) -> Transformer:
    # Tracing 32 layers takes most of a second; nobody changes the result.
    return Transformer.abstract(config)
