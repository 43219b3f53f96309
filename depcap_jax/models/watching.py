"""Attention weights of some queries, computed beside attention itself, which may be one fused operation."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Looked(NamedTuple):
    """What a layer looked with, and at: nothing is computed from it unless somebody watches."""

    q: jax.Array  # [B, Q, M, H] after RoPE
    k: jax.Array  # [B, T, S, H] after RoPE
    lengths: jax.Array  # [B] keys from here on are not seen

    def weights(self, watched: jax.Array) -> jax.Array:
        """The softmax float32 [B, W, T] of the queries `watched` [B, W], as the mean over the heads."""
        batch, _, heads, size = self.q.shape
        groups = self.k.shape[2]
        q = jnp.take_along_axis(self.q, watched[:, :, None, None], axis=1, mode="clip")
        q = q.reshape(batch, -1, groups, heads // groups, size).astype(jnp.float32)
        scores = jnp.einsum("bwgrh,btgh->bgrwt", q, self.k.astype(jnp.float32)) / np.float32(math.sqrt(size))
        seen = jnp.arange(self.k.shape[1], dtype=jnp.int32)[None] < self.lengths[:, None]
        scores = jnp.where(seen[:, None, None, None, :], scores, jnp.finfo(jnp.float32).min)
        return jnp.mean(jax.nn.softmax(scores), axis=(1, 2))


class Watch(NamedTuple):
    """Who watches the layers of a pass go by."""

    watched: jax.Array  # [B, W] the queries whose weights are wanted, as indices into the pass
    first: int  # the first layer that counts; the mean is over it and all behind
    num_layers: int

    def begin(self, x: jax.Array, canvas: int) -> jax.Array:
        """Nothing seen yet [B, W, T]; it varies over a mesh as the stream x does."""
        return jnp.zeros_like(x, jnp.float32, shape=(*self.watched.shape, canvas))

    def add(self, attention: jax.Array, index: int | jax.Array, looked: Looked) -> jax.Array:
        """The mean so far, with the share of the layer `index`, a tracer where layers are scanned."""

        def more() -> jax.Array:
            return attention + looked.weights(self.watched) / (self.num_layers - self.first)

        if isinstance(index, int):
            return more() if index >= self.first else attention
        return lax.cond(index >= self.first, more, lambda: attention)
