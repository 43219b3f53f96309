"""The key/value cache of one layer or of all: how it lies in memory, how spans of it are written and read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

if TYPE_CHECKING:
    from depcap_jax.models.layers import Queries


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValues:
    """Keys (after RoPE) and values of every canvas position, of one layer or of all.

    Of one layer, [B, S, H, T]: so XLA's products of attention read them, without a copy. With
    `positions_first` [B, T, S, H], which fused attention reads. Of all layers, the same with an axis of
    layers behind the batch.
    """

    k: jax.Array
    v: jax.Array
    positions_first: bool = dataclasses.field(default=False, metadata={"static": True})

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: DTypeLike, *, positions_first: bool) -> KeyValues:
        """Zeros; `shape` is (B, T, S, H), or (B, layers, T, S, H)."""
        *lead, length, heads, size = shape
        axes = (length, heads, size) if positions_first else (heads, size, length)
        return cls(jnp.zeros((*lead, *axes), dtype), jnp.zeros((*lead, *axes), dtype), positions_first)

    @property
    def length(self) -> int:
        """Positions of the canvas."""
        return self.k.shape[self._position_axis]

    @property
    def _position_axis(self) -> int:
        return -3 if self.positions_first else -1

    def exchange(
        self, q: jax.Array, k: jax.Array, v: jax.Array, queries: Queries, layer: jax.Array | None
    ) -> tuple[KeyValues, jax.Array, jax.Array, jax.Array]:
        """Stores what a pass has made, and tells what it sees: keys and values, of which how many count [B].

        q is [B, Q, A, H]; k and v are [B, Q, G, H].
        """
        cache = self.write(k, v, queries.start, queries.write, layer, queries.rows)
        return cache, *cache.read(layer, queries.rows), queries.lengths

    def write(
        self,
        k: jax.Array,
        v: jax.Array,
        start: jax.Array | None,
        mask: jax.Array,
        layer: jax.Array | None,
        rows: jax.Array | None = None,
    ) -> KeyValues:
        """Stores k and v [B, Q, S, H] at [start, start + Q) of each row, where `mask` [B, Q] allows.

        They are of the `rows` [B] of the cache, or of all.
        """
        order = (0, 1, 2, 3) if self.positions_first else (0, 2, 3, 1)
        mask = mask[:, :, None, None].transpose(order)
        first = jnp.zeros(len(mask), jnp.int32) if start is None else start
        layers = () if layer is None else (layer,)

        def write_all(old: jax.Array, new: jax.Array) -> jax.Array:
            if start is None and layer is None and rows is None:
                return jnp.where(mask, new, old)
            if rows is None and len(old) > 1:
                return jax.vmap(lambda o, n, m, f: self._write_span(o, n, m, f, *layers))(
                    old, new, mask, first
                )
            # Without vmap, whose slices become a scatter with checks.
            places = jnp.zeros(1, jnp.int32) if rows is None else rows
            for i in range(len(places)):
                old = self._write_span(old, new[i], mask[i], first[i], places[i], *layers)
            return old

        return dataclasses.replace(
            self, k=write_all(self.k, k.transpose(order)), v=write_all(self.v, v.transpose(order))
        )

    def _write_span(
        self, old: jax.Array, new: jax.Array, mask: jax.Array, start: jax.Array, *lead: jax.Array
    ) -> jax.Array:
        """One row, at the indices `lead`: reads, chooses and writes the span; the rest stays in place."""
        begin = [*lead, *[jnp.zeros_like(start)] * new.ndim]
        begin[self._position_axis] = start
        new, mask = (x.reshape(*[1] * len(lead), *x.shape) for x in (new, mask))
        span = lax.dynamic_slice(old, begin, new.shape)
        return lax.dynamic_update_slice(old, jnp.where(mask, new, span), begin)

    def read(self, layer: jax.Array | None, rows: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
        """A layer's keys and values as attention takes them [B, T, S, H], of the `rows` [B] or of all.

        The compiler sees through the transposes.
        """

        def read_one(x: jax.Array) -> jax.Array:
            if rows is not None:
                x = jnp.concatenate([lax.dynamic_slice_in_dim(x, rows[i], 1) for i in range(len(rows))])
            if layer is not None:
                x = lax.dynamic_index_in_dim(x, layer, axis=1, keepdims=False)
            return x if self.positions_first else x.transpose(0, 3, 1, 2)

        return read_one(self.k), read_one(self.v)
