"""Partitions beside the paper's: a window that slides, and blocks that end where entropy jumps."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.partition import Lengths, Partition
from depcap_jax.decoding.policy import Number, check_integer, policy, setting


@policy
class SlidingWindow(Partition):
    """DSB (arXiv 2602.05992) and DCD (arXiv 2601.02076): no blocks, a window with so many open positions.

    It begins at the first open position and grows by what was committed inside it, up to `longest`. DSB has
    32 open positions and a window of 32 ("const.") or any length ("greedy"); DCD 16, and a window of 128.
    With a cache, renew what it has passed by: `DualCache(refresh_after=32, margin=24)` is DSB's.
    """

    slides = True
    open_length: int = setting(default=32, low=1, doc="open positions of the window")
    longest: int | None = setting(default=None, kind=int, low=1, doc="longest window; by default any length")

    def __post_init__(self) -> None:
        if self.longest is not None:
            check_integer("longest", self.longest, self.open_length)

    def lengths(self, gen_length: int) -> Lengths:
        """As long as the answer, or as is set."""
        longest = gen_length if self.longest is None else min(self.longest, gen_length)
        return Lengths(1, longest, longest)

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Open positions, and what is committed between them."""
        assert prediction.open is not None
        too_many = jnp.cumsum(prediction.open, axis=-1, dtype=jnp.int32) > self.open_length
        return jnp.minimum(numerics.first(too_many), remaining), None, None


@policy
class EntropyBlocks(Partition):
    """Blocks that end before entropy jumps up most: ours, after Swordsman (arXiv 2602.04399).

    Only summaries of that rule were seen, so this is no claim about it: of the lengths in [l_min, l_max] the
    one with the largest rise H_k - H_(k-1) to the position behind it.
    """

    l_min: int = setting(default=8, low=1, doc="shortest block")
    l_max: int = setting(default=128, low=1, doc="longest block")
    least_rise: Number = setting(default=0.0, low=0, doc="a smaller rise (nats) ends no block")

    reads = Reads(entropy=True)

    def __post_init__(self) -> None:
        check_integer("l_max", self.l_max, self.l_min)

    def lengths(self, gen_length: int) -> Lengths:
        """It looks one position beyond the longest block."""
        l_min, l_max = min(self.l_min, gen_length), min(self.l_max, gen_length)
        return Lengths(l_min, l_max, min(self.l_max + 1, gen_length))

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None, jax.Array]:
        """The length before the largest rise, the longest if there is none; tells the entropy."""
        assert prediction.entropy is not None
        entropy = prediction.entropy
        length = jnp.arange(entropy.shape[-1], dtype=jnp.int32)[None]
        allowed = (length >= self.l_min) & (length <= self.l_max) & (length < remaining[:, None])
        before = jnp.pad(entropy, ((0, 0), (1, 0)))[:, :-1]
        rise = jnp.where(allowed, entropy - before, -jnp.inf)
        best = numerics.argmax(rise)
        found = jnp.max(rise, axis=-1) > self.least_rise
        longest = jnp.minimum(remaining, self.l_max)
        return jnp.where(found, best, longest), None, entropy


class Closure(NamedTuple):
    """What attention says of the lengths, for the trace."""

    closure: jax.Array  # [B, W]: of a block that ends with this position; 0 beyond the answer


@policy
class AttentionBlocks(Partition):
    """Blocks that hardly look at what is open behind them: ours, after GeoBlock (arXiv 2603.26675).

    Only summaries of that rule were seen, so this is no claim about it. The closure of a block C is
    (cc + alpha ch) / (cc + alpha ch + cf): of all that C looks at, the share that goes to itself and, counted
    with alpha, to what is known; the rest goes to open positions behind it. The longest block is taken whose
    closure is within `slack` of the best.
    """

    l_max: int = setting(default=32, low=1, doc="longest block")
    alpha: Number = setting(default=0.5, low=0, doc="what a look at something known counts")
    slack: Number = setting(default=0.1, low=0, high=1, doc="closure given up for length")
    layers: int = setting(default=4, low=1, doc="last layers whose attention is averaged")

    @property
    def reads(self) -> Reads:
        """The attention to the whole canvas."""
        return Reads(attention=self.layers)

    def lengths(self, gen_length: int) -> Lengths:
        """Of any length, up to the longest."""
        longest = min(self.l_max, gen_length)
        return Lengths(1, longest, longest)

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None, Closure]:
        """The longest that is closed enough; tells all closures."""
        attention = prediction.attention
        assert attention is not None
        assert prediction.open is not None
        known = jnp.sum(jnp.where(attention.open[:, None, :], 0.0, attention.weights), axis=-1)
        total = jnp.sum(attention.weights, axis=-1)
        # [B, i, x]: what position i looks at among the first x + 1 positions.
        own = jnp.cumsum(attention.within, axis=-1)
        own_open = jnp.cumsum(jnp.where(prediction.open[:, None, :], attention.within, 0.0), axis=-1)
        history = known[:, :, None] - (own - own_open)
        ahead = (total - known)[:, :, None] - own_open
        width = own.shape[-1]
        index = jnp.arange(width, dtype=jnp.int32)
        of_block = (index[:, None] <= index[None, :])[None]  # its positions i: their number cancels

        closed, leaks = (
            jnp.sum(jnp.where(of_block, jnp.maximum(x, 0.0), 0.0), axis=1)
            for x in (own + self.alpha * history, ahead)
        )
        fits = index[None] < remaining[:, None]
        closure = jnp.where(fits, closed / jnp.maximum(closed + leaks, 1e-30), 0.0)
        good = fits & (closure >= jnp.max(closure, axis=-1, keepdims=True) - self.slack)
        return width - numerics.first(good[:, ::-1]), None, Closure(closure)
