"""A model's parameters as a flat mapping from dotted names ("layers.0.attn.q.kernel") to arrays."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax
from flax import nnx

from depcap_jax.models.config import ModelConfig
from depcap_jax.models.transformer import Transformer


@functools.lru_cache(maxsize=16)
def leaf_shapes(config: ModelConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of every parameter of a model with this config."""
    return MappingProxyType({name: leaf.shape for name, leaf in get_leaves(_abstract(config)).items()})


def get_leaves(model: Transformer) -> dict[str, jax.Array]:
    """The model's parameters by dotted name."""
    flat = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): leaf.get_value() for path, leaf in flat}


def with_leaves(config: ModelConfig, leaves: Mapping[str, Any]) -> Transformer:
    """A model made of these arrays; nothing is initialised."""
    graph, state = nnx.split(_abstract(config))
    flat = {path: leaf.replace(leaves[".".join(map(str, path))]) for path, leaf in nnx.to_flat_state(state)}
    return nnx.merge(graph, nnx.from_flat_state(flat))


@functools.lru_cache(maxsize=16)
def _abstract(config: ModelConfig) -> Transformer:
    # Tracing 32 layers takes most of a second; nobody changes the result.
    return Transformer.abstract(config)
