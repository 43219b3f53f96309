"""A selection of our own: what is sure goes together, what is not goes where it stands apart."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.field.remembering import write_block
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.select import Select, greedy_independent_set, precedes


class Said(NamedTuple):
    """What each position of an answer said on the last pass that read it."""

    token: jax.Array  # [B, G] int32: its most likely token; -1 before there was such a pass
    confidence: jax.Array  # [B, G] float32


class Standing(NamedTuple):
    """The block as `Spread` sees it, for the trace."""

    sure: jax.Array  # [B, L] bool: taken whatever stands beside it
    ready: jax.Array  # [B, L] bool: not sure, but may be taken where it stands apart
    conflicts: jax.Array  # [B, L, L] bool: may not be unsure together; symmetric


@policy
class Spread(Select):
    """Ours: commits over a wide window at once, positions that are not sure too, if they stand apart.

    Sure are the surest ones whose doubts 1 - c sum up to at most `doubt`. In a text with many right
    continuations most positions never get there by waiting: their doubt is a choice, and somebody has to
    make it. What makes a choice wrong is another one, made on the same pass, that it depends on. So of the
    others those are taken, greedily by confidence, of which no two are in conflict, that is where

    - they look at each other with a weight above `look`; or
    - they want each other's tokens, D_ij = log p_i(y_j) + log p_j(y_i) > gamma (CAP-Decoding's conflict),
      and are closer than `reach` positions for each nat that the surer one doubts.

    The first open position of all may go whatever it says. Another one must be settled: say what it said on
    the last pass with a confidence moved by less than `drift`, not below `least`; and look at no open
    position before it with more than `look_back`: what it depends on comes first.

    It wants a window that slides, as the recipe `spread` has it, so that there is always something ahead.
    """

    exact = True
    doubt: Number = setting(default=0.02, low=0, doc="sum of doubts that what is sure may have")
    least: Number = setting(default=0.2, low=0, high=1, doc="least confidence of what is settled")
    drift: Number = setting(default=0.05, low=0, doc="what is settled has moved less since the last pass")
    look: Number = setting(default=0.05, low=0, high=1, doc="attention between two that is a conflict")
    look_back: Number = setting(
        default=0.1, low=0, high=1, doc="attention to an open position before it that makes one wait"
    )
    reach: Number = setting(default=16.0, low=0, doc="positions that a nat of doubt reaches")
    gamma: Number = setting(default=-16.0, doc="two positions conflict where their score is above")
    layers: int = setting(default=4, low=1, doc="last layers whose attention is averaged")

    @property
    def reads(self) -> Reads:
        """What positions think of each other's tokens, and how they look at each other."""
        return Reads(pairs=True, attention=self.layers)

    def init(self, batch: int, gen_length: int) -> Said:
        """Nothing said yet."""
        shape = (batch, gen_length)
        return Said(jnp.full(shape, -1, jnp.int32), jnp.zeros(shape, jnp.float32))

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Said
    ) -> tuple[jax.Array, Said, Standing]:
        """Takes what is sure, and of what is ready the greedy set without a conflict."""
        log_c = prediction.log_confidence
        now = Said(prediction.token, jnp.exp(log_c))
        before = numerics.window(memory, start, log_c.shape[-1])
        sure = candidates & (self._doubts(log_c, candidates) <= self.doubt)

        looks = self._looks(prediction, candidates)
        index = jnp.arange(log_c.shape[-1], dtype=jnp.int32)[None]
        ahead = index[:, :, None] > index[:, None, :]
        waits = jnp.any(ahead & (looks > self.look_back), axis=-1)
        moved = jnp.abs(now.confidence - before.confidence)
        settled = (now.token == before.token) & (moved < self.drift) & (now.confidence >= self.least)
        first = index == numerics.first(candidates)[:, None]
        ready = candidates & ~sure & (first | (settled & ~waits))

        conflicts = self._conflicts(prediction, looks)
        ready &= first | ~jnp.any(conflicts & sure[:, None, :], axis=-1)
        conflicts &= ready[:, :, None] & ready[:, None, :]
        taken = sure | greedy_independent_set(conflicts, log_c, ready)
        memory = write_block(memory, now, start, candidates)
        return taken, memory, Standing(sure, ready, conflicts)

    def _doubts(self, log_c: jax.Array, candidates: jax.Array) -> jax.Array:
        """[B, L]: the sum of 1 - c over a candidate and all that are surer."""
        upto = precedes(log_c) | jnp.eye(log_c.shape[-1], dtype=bool)[None]
        doubts = jnp.where(upto & candidates[:, None, :], -jnp.expm1(log_c)[:, None, :], 0.0)
        return jnp.sum(doubts, axis=-1)

    def _looks(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """[B, i, j]: how much what predicts i looks at what predicts an open j other than i."""
        assert prediction.attention is not None
        itself = jnp.eye(candidates.shape[-1], dtype=bool)[None]
        return jnp.where(itself | ~candidates[:, None, :], 0.0, prediction.attention.between)

    def _conflicts(self, prediction: Prediction, looks: jax.Array) -> jax.Array:
        """[B, L, L]: which two are not to be taken together unless both are sure."""
        assert prediction.pairs is not None
        score = prediction.pairs + jnp.swapaxes(prediction.pairs, 1, 2)  # D_ij, CAP-Decoding's
        surprise = -prediction.log_confidence
        index = jnp.arange(surprise.shape[-1], dtype=jnp.int32)[None]
        apart = jnp.abs(index[:, :, None] - index[:, None, :]).astype(jnp.float32)
        near = apart < self.reach * jnp.minimum(surprise[:, :, None], surprise[:, None, :])
        looking = jnp.maximum(looks, jnp.swapaxes(looks, 1, 2)) > self.look
        itself = jnp.eye(surprise.shape[-1], dtype=bool)[None]
        return (looking | (near & (score > self.gamma))) & ~itself
