"""A cache that keeps a share of the keys and values outside a window: those that the window asks for most."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.models.key_values import KeyValues

if TYPE_CHECKING:
    from depcap_jax.models.layers import Queries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseKeyValues:
    """What is kept of one layer or of all, for a window [begin, end) of each row.

    A full pass chooses what is kept outside of the window: the greatest scores, a position's being the dot
    product of its key with the mean query of the window, over all heads, and then the greatest of its
    own and its two neighbours'. Other passes see that, and all of the window, and nothing else.
    """

    slots: KeyValues
    """Of n + W places, those kept first, and the window's right behind them."""
    begin: jax.Array
    """[B] int32: the canvas position where the window begins."""
    end: jax.Array
    """[B] int32: and where it ends."""
    length: int = dataclasses.field(metadata={"static": True})
    """Positions of the canvas, T."""
    window: int = dataclasses.field(metadata={"static": True})
    """Positions of the widest window, W."""
    keep: float = dataclasses.field(metadata={"static": True})
    """The share that is kept of what is outside."""
    prunes: bool = dataclasses.field(metadata={"static": True})
    """Whether passes are full ones, which see everything anew and choose what is kept."""

    def exchange(
        self, q: jax.Array, k: jax.Array, v: jax.Array, queries: Queries, layer: jax.Array | None
    ) -> tuple[SparseKeyValues, jax.Array, jax.Array, jax.Array]:
        """As `KeyValues.exchange`."""
        begin, end = self.begin, self.end
        if queries.rows is not None:
            begin, end = (jnp.take(x, queries.rows, mode="clip") for x in (begin, end))
        size = end - begin
        outside = (queries.lengths - size).astype(jnp.float32)
        most = self.slots.length - self.window
        count = jnp.minimum(jnp.floor(self.keep * outside).astype(jnp.int32), most)
        place = jnp.arange(self.window, dtype=jnp.int32)[None]
        slots = self.slots
        if self.prunes:
            chosen = _most_wanted(q, k, begin, end, queries.lengths, most)
            stays = jnp.arange(chosen.shape[1], dtype=jnp.int32)[None] < count[:, None]
            stays &= jnp.any(queries.write, axis=1, keepdims=True)
            zeros = jnp.zeros_like(count)
            slots = slots.write(_at(k, chosen), _at(v, chosen), zeros, stays, layer, queries.rows)
        # Where in this pass the window's positions are.
        source = begin[:, None] + place - (0 if queries.start is None else queries.start[:, None])
        inside = (source >= 0) & (source < q.shape[1]) & (place < size[:, None])
        source = jnp.clip(source, 0, q.shape[1] - 1)
        inside &= _at(queries.write, source)
        slots = slots.write(_at(k, source), _at(v, source), count, inside, layer, queries.rows)
        cache = dataclasses.replace(self, slots=slots)
        if self.prunes:
            return cache, k, v, queries.lengths
        return cache, *slots.read(layer, queries.rows), count + size


def _most_wanted(
    q: jax.Array, k: jax.Array, begin: jax.Array, end: jax.Array, lengths: jax.Array, most: int
) -> jax.Array:
    """The positions [B, n] with the greatest scores outside of the windows, greatest first."""
    batch, length, groups, size = k.shape
    position = jnp.arange(length, dtype=jnp.int32)[None]
    in_window = (position >= begin[:, None]) & (position < end[:, None])
    wanted = jnp.where(in_window[:, :, None, None], q.astype(jnp.float32), 0.0).sum(axis=1)
    wanted = wanted.reshape(batch, groups, -1, size).sum(axis=2)  # as the mean, but for a factor
    score = jnp.einsum("bgh,btgh->bt", wanted, k.astype(jnp.float32))
    outside = (position < lengths[:, None]) & ~in_window
    score = jnp.where(outside, score, -jnp.inf)
    padded = jnp.pad(score, ((0, 0), (1, 1)), constant_values=-jnp.inf)
    score = jnp.where(outside, jnp.maximum(jnp.maximum(padded[:, :-2], score), padded[:, 2:]), -jnp.inf)
    return lax.top_k(score, min(most, length))[1]


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    """x [B, Q, ...] at positions [B, n] inside of it."""
    rows = jnp.arange(len(x), dtype=jnp.int32)[:, None]
    return x.at[rows, index].get(mode="promise_in_bounds")
