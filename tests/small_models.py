"""Random layers with the golden models' ids: where weights do not matter, they compile in half the time."""

from __future__ import annotations

import dataclasses
import functools

import golden_runs
import jax
import numpy as np

import depcap_jax as dc
from depcap_jax.models.parameters import leaf_shapes, with_leaves


@functools.cache
def small_model(family: str, num_layers: int = 1) -> dc.Transformer:
    """Peaked predictions that differ by position; ids, context and shift as in the golden models.

    With one layer, keys and values know nothing of their surroundings: no cache is ever stale.
    """
    sizes = {"width": 32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16, "ff_width": 64}
    config = dataclasses.replace(golden_runs.model(family).config, num_layers=num_layers, **sizes)
    rng = np.random.default_rng(0)

    def weights(name: str, shape: tuple[int, ...]) -> jax.Array:
        if len(shape) < 2:
            return jax.device_put(np.full(shape, name.endswith("scale"), np.float32))  # no bias
        scale = {"embed": 1.0, "head": 6.0 / shape[0] ** 0.5}.get(name, 2.0 / shape[0] ** 0.5)
        return jax.device_put(rng.normal(0, scale, shape).astype(np.float32))

    return with_leaves(config, {name: weights(name, shape) for name, shape in leaf_shapes(config).items()})
