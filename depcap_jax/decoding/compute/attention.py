"""What the positions of a window look at: attention weights, where a policy reads them.

A pass computes them beside its own attention, for the queries that predict the window alone, and only if
somebody asks (`Reads.attention`): otherwise nothing of this is in the program.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.model import DiffusionLM


class Attention(NamedTuple):
    """What positions of a window look at: the mean over all heads and the last layers.

    A row of weights is that of the query which predicts a position: where a model predicts the next one
    (Dream), the query before it. Keys are where they stand.
    """

    weights: jax.Array
    """[B, W, T] float32: of the window's positions, at all positions of the canvas. A row sums to 1; those of
    positions that are not `inside` are 0, and so are columns of padding."""
    inside: jax.Array
    """[B, W] bool: which of the window's positions mean something: for a selection those of the block, for a
    partition those up to the end of the answer, or of what the pass computed."""
    open: jax.Array
    """[B, T] bool: which positions of the canvas are still to be decoded."""
    start: jax.Array
    """[B] int32: where the window begins on the canvas."""
    query: jax.Array
    """[B] int32: where the query stands that predicts the window's first position; -1 before the canvas."""

    @classmethod
    def of(
        cls, model: DiffusionLM, weights: jax.Array, open_: jax.Array, start: jax.Array, inside: jax.Array
    ) -> Attention:
        """From the weights [B, W', T] of a pass, which may reach further than the window."""
        weights = jnp.where(inside[:, :, None], weights[:, : inside.shape[1]], 0.0)
        return cls(weights, inside, open_, start, start - int(model.config.predicts_next))

    @property
    def within(self) -> jax.Array:
        """The weights [B, W, W] at the window's own positions, i's at j; 0 where j is not `inside`."""
        return self._from(self.start)

    @property
    def between(self) -> jax.Array:
        """The weights [B, W, W] of the query that predicts i at the one that predicts j, as `within`.

        Where a model predicts the next position, what it makes of j stands before j; nothing stands before
        the canvas, so its first position predicts itself too.
        """
        return self._from(self.query)

    def _from(self, first: jax.Array) -> jax.Array:
        """The weights [B, W, W] at the window's length of keys from `first` [B] on."""
        column = first[:, None] + jnp.arange(self.inside.shape[1], dtype=jnp.int32)[None]
        column = jnp.clip(column, 0, self.weights.shape[-1] - 1)[:, None, :]
        return jnp.where(self.inside[:, None, :], numerics.take(self.weights, column), 0.0)


class Watch(NamedTuple):
    """Whose attention a pass is to tell."""

    layers: int = 0  # how many of the last layers the mean is over; 0: nobody asks
    positions: int = 0  # from each block's start
    reader: str = ""  # who asks


def watch_for(model: DiffusionLM, *readers: Watch) -> Watch:
    """What all of them, some of whom may not ask, together want of a pass.

    Raises:
      ValueError: if they mean different numbers of layers, or the model tells no attention.
    """
    asking = [reader for reader in readers if reader.layers]
    for other in asking[1:]:
        if other.layers != asking[0].layers:
            raise ValueError(
                "a pass tells the attention of one number of layers: "
                + ", ".join(f"{reader.reader} reads that of the last {reader.layers}" for reader in asking)
            )
    if not asking:
        return Watch()
    if not hasattr(model, "hidden_and_attention"):
        raise ValueError(
            f"{asking[0].reader} reads attention, which {type(model).__name__} does not tell: it has no "
            "method hidden_and_attention (see depcap_jax.AttentiveLM)"
        )
    return asking[0]._replace(positions=max(reader.positions for reader in asking))
