"""One random layer with the golden models' ids: where weights do not matter, it compiles in half the time."""

from __future__ import annotations

import dataclasses
import functools

import golden_runs

import depcap_jax as dc
from depcap_jax.inspect.overhead import random_model


@functools.cache
def small_model(family: str) -> dc.Transformer:
    """Peaked predictions that differ by position; ids, context and shift as in the golden models."""
    config = dataclasses.replace(
        golden_runs.model(family).config,
        width=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        ff_width=64,
    )
    return random_model(config, sharpness=6.0)
