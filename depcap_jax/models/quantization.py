"""Weights in few bits: int8 with one scale per channel, int4 with one per group of 32.

A weight is an integer times a scale: the largest weight of its channel or group is 127 or 7 of them. Channels
are what a product keeps, groups divide the axis that it sums over. Two 4-bit integers share a byte, one of
the group's first half and one of its second, so that a product needs no interleaving. Scales have the model's
dtype, and weights are rounded to multiples of the rounded scale.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Bits = Literal["int8", "int4"]
BITS: tuple[Bits, ...] = get_args(Bits)

SCALE = "_scale"
"""Behind a weight's name: that of its scales."""

_GROUP = 32
_LARGEST = {"int8": 127, "int4": 7}
_OFFSET = 8  # makes a 4-bit integer positive, as bytes hold it


class Quantized(NamedTuple):
    """A matrix in few bits."""

    values: jax.Array
    """int8 of the matrix's shape; or uint8, half as long along the axis that products sum over."""
    scale: jax.Array
    """One entry per group along that axis, of which int8 has a single one."""


def summed_axis(name: str) -> int | None:
    """The axis of a weight, by its dotted name, that products sum over; None: it stays as it is."""
    if name == "embed":
        return 1
    return 0 if name == "head" or name.endswith("kernel") else None


def quantize(weights: jax.Array, bits: Bits, axis: int, dtype: DTypeLike) -> Quantized:
    """A matrix in few bits, with scales of `dtype`; `axis` is the one that products sum over."""
    size = weights.shape[axis]
    group = size if bits == "int8" else math.gcd(size, _GROUP)
    if bits == "int4" and group % 2:
        raise ValueError(f"int4 needs an even number of weights per channel, got {size}")
    parts = _split(weights.astype(jnp.float32), size // group, axis)
    largest = jnp.max(jnp.abs(parts), axis=axis + 1, keepdims=True)
    scale = (largest / _LARGEST[bits]).astype(dtype)
    # All zeros, or too small for float16.
    scale = jnp.where(scale == 0, jnp.ones_like(scale), scale)
    steps = jnp.round(parts / scale.astype(jnp.float32))
    values = jnp.clip(steps, -_LARGEST[bits], _LARGEST[bits]).astype(jnp.int8)
    if bits == "int4":
        low, high = jnp.split((values + jnp.int8(_OFFSET)).astype(jnp.uint8), 2, axis=axis + 1)
        values = low | (high << 4)
    return Quantized(_join(values, axis), jnp.squeeze(scale, axis + 1))


def dequantize(weights: Quantized, axis: int) -> jax.Array:
    """The matrix, in the dtype of its scales."""
    values, scale = weights
    parts = _split(values, scale.shape[axis], axis)
    if values.dtype == jnp.uint8:
        halves = jnp.concatenate([parts & 15, parts >> 4], axis=axis + 1)
        parts = halves.astype(jnp.int8) - jnp.int8(_OFFSET)
    parts = parts.astype(scale.dtype)
    return _join(parts * jnp.broadcast_to(jnp.expand_dims(scale, axis + 1), parts.shape), axis)


def _split(x: jax.Array, groups: int, axis: int) -> jax.Array:
    """An axis as two: groups, and what is in them."""
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])


def _join(x: jax.Array, axis: int) -> jax.Array:
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
