"""A selection of our own: what is sure goes together, what is not goes where it stands apart."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.field.one_pass import ranked_upto
from depcap_jax.decoding.field.remembering import write_block
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.select import Select, greedy_independent_set


class Said(NamedTuple):
    """What each position of an answer said on the last pass that read it."""

    token: jax.Array  # [B, G] int32: its most likely token; -1 before there was such a pass
    confidence: jax.Array  # [B, G] float32
    calm: jax.Array  # [B, G] int32: passes in a row, up to that one, on which it said what it had said before


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
    make it. But some doubt is none: a token that the model is still working out gets sure once it knows
    more. What tells the two apart is who holds the doubt. Where one rival holds most of it, two results
    stand against each other; where many tokens share it, any of them would do. So in the making is what
    has a rival with more than the share `rival` of 1 - c, and has not been calm for `calm` passes; calm is
    what says the same as on the last pass, its confidence moved by less than `drift`.

    Of what is not sure go

    - one lead: of the positions with which a gap between known tokens begins, the most confident one among
      the first `nearest`. It waits only where something sure is committed before it on this very pass,
      and it is in the making or has not been calm: what it says may be about to change;
    - beside it every choice that has a confidence of `least` and no more than `entropy` nats (what has
      more does not even know what kind of token it is), stands in known surroundings (`known` of the two
      positions on either side), and looks at no open position before it with more than `look_back`: what
      it depends on comes first.

    Neither goes where the token right behind it gets sure on this pass, by itself: that may tell it more.
    Of the others those are taken, greedily by confidence, of which no two are in conflict, nor but for the
    lead with what is sure; that is where

    - they look at each other with a weight above `look`; or
    - they want each other's tokens, D_ij = log p_i(y_j) + log p_j(y_i) > gamma (CAP-Decoding's conflict),
      and are closer than `reach` positions for each nat that the surer one doubts.

    It wants a window that slides, as the recipe `spread` has it, so that there is always something ahead.
    """

    exact = True
    doubt: Number = setting(default=0.03, low=0, doc="sum of doubts that what is sure may have")
    nearest: int = setting(default=8, low=1, doc="positions, from the first unsure one, that may lead")
    least: Number = setting(default=0.2, low=0, high=1, doc="least confidence of what goes beside the lead")
    entropy: Number = setting(default=2.1, low=0, doc="greatest entropy, nats, of what goes beside the lead")
    known: int = setting(
        default=2,
        low=0,
        high=4,
        doc="known ones of the two positions on either side of what goes beside the lead",
    )
    rival: Number = setting(
        default=0.6, low=0, high=1, doc="share of the doubt above which one rival makes it no choice"
    )
    calm: int = setting(default=3, low=1, doc="calm passes after which one goes in spite of its rival")
    drift: Number = setting(default=0.08, low=0, doc="what is calm has moved less since the last pass")
    look: Number = setting(default=0.05, low=0, high=1, doc="attention between two that is a conflict")
    look_back: Number = setting(
        default=0.1, low=0, high=1, doc="attention to an open position before it that makes one wait"
    )
    reach: Number = setting(default=20.0, low=0, doc="positions that a nat of doubt reaches")
    gamma: Number = setting(default=-16.0, doc="two positions conflict where their score is above")
    layers: int = setting(default=4, low=1, doc="last layers whose attention is averaged")

    @property
    def reads(self) -> Reads:
        """Doubts and who holds them, what positions think of each other's tokens, and how they look."""
        return Reads(entropy=True, top_k=2, pairs=True, attention=self.layers)

    def init(self, batch: int, gen_length: int) -> Said:
        """Nothing said yet."""
        shape = (batch, gen_length)
        nothing = jnp.zeros(shape, jnp.int32)
        return Said(nothing - 1, jnp.zeros(shape, jnp.float32), nothing)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Said
    ) -> tuple[jax.Array, Said, Standing]:
        """Takes what is sure, and of what is ready the greedy set without a conflict."""
        log_c = prediction.log_confidence
        now = self._hear(prediction, numerics.window(memory, start, log_c.shape[-1]))
        sure = candidates & (self._doubts(log_c, candidates) <= self.doubt)
        unsure = candidates & ~sure
        choice = (_rival(prediction) <= self.rival) | (now.calm >= self.calm)

        lead, looks = self._lead(log_c, unsure), self._looks(prediction, candidates)
        told_before = jnp.cumsum(sure, axis=-1, dtype=jnp.int32) > 0
        leads = ~told_before | (choice & (now.calm > 0))
        beside = choice & self._beside(prediction, candidates, looks)
        ready = unsure & jnp.where(lead, leads, beside) & ~_told_behind(sure)

        conflicts = self._conflicts(prediction, looks)
        ready &= lead | ~jnp.any(conflicts & sure[:, None, :], axis=-1)
        conflicts &= ready[:, :, None] & ready[:, None, :]
        taken = sure | greedy_independent_set(conflicts, log_c, ready)
        memory = write_block(memory, now, start, candidates)
        return taken, memory, Standing(sure, ready, conflicts)

    def _hear(self, prediction: Prediction, before: Said) -> Said:
        """What the block says now, and for how long it has."""
        confidence = jnp.exp(prediction.log_confidence)
        same = (prediction.token == before.token) & (jnp.abs(confidence - before.confidence) < self.drift)
        return Said(prediction.token, confidence, jnp.where(same, before.calm + 1, 0))

    def _doubts(self, log_c: jax.Array, candidates: jax.Array) -> jax.Array:
        """[B, L]: the sum of 1 - c over a candidate and all that are surer."""
        upto = ranked_upto(log_c, candidates)
        return jnp.sum(jnp.where(upto, -jnp.expm1(log_c)[:, None, :], 0.0), axis=-1)

    def _lead(self, log_c: jax.Array, unsure: jax.Array) -> jax.Array:
        """[B, L] bool: the most confident beginning of a gap among the nearest positions."""
        index = jnp.arange(log_c.shape[-1], dtype=jnp.int32)[None]
        begins = numerics.beginnings(unsure)
        begins &= index - numerics.first(unsure)[:, None] < self.nearest
        return begins & (index == numerics.argmax(jnp.where(begins, log_c, -jnp.inf))[:, None])

    def _beside(self, prediction: Prediction, candidates: jax.Array, looks: jax.Array) -> jax.Array:
        """[B, L] bool: stands where it may go beside the lead, if it is a choice."""
        assert prediction.entropy is not None
        definite = (jnp.exp(prediction.log_confidence) >= self.least) & (prediction.entropy <= self.entropy)
        return definite & (self._known_around(prediction, candidates) >= self.known) & ~self._waits(looks)

    def _known_around(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """[B, L] int32: the known ones of the two positions on either side; what is before the block is."""
        assert prediction.attention is not None
        known = prediction.attention.inside & ~candidates
        before, behind = jnp.ones_like(known[:, :2]), jnp.zeros_like(known[:, :2])
        known, width = jnp.concatenate([before, known, behind], axis=-1), candidates.shape[-1]
        around = jnp.stack([known[:, at : at + width] for at in (0, 1, 3, 4)])
        return jnp.sum(around, axis=0, dtype=jnp.int32)

    def _looks(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """[B, i, j]: how much what predicts i looks at what predicts an open j other than i."""
        assert prediction.attention is not None
        itself = jnp.eye(candidates.shape[-1], dtype=bool)[None]
        return jnp.where(itself | ~candidates[:, None, :], 0.0, prediction.attention.between)

    def _waits(self, looks: jax.Array) -> jax.Array:
        """[B, L] bool: it looks at something open before it."""
        index = jnp.arange(looks.shape[-1], dtype=jnp.int32)
        before = (index[:, None] > index[None, :])[None]
        return jnp.any(before & (looks > self.look_back), axis=-1)

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


def _rival(prediction: Prediction) -> jax.Array:
    """[B, L]: which share of the doubt 1 - c the most likely other token holds."""
    assert prediction.top is not None
    other = prediction.top.ids != prediction.token[..., None]
    best = jnp.max(jnp.where(other, prediction.top.log_p, -jnp.inf), axis=-1)
    return jnp.exp(best) / jnp.maximum(-jnp.expm1(prediction.log_confidence), 1e-9)


def _told_behind(sure: jax.Array) -> jax.Array:
    """[B, L] bool: the next position is sure and the one behind that is not: no tail of end-of-text."""
    after = jnp.pad(sure, ((0, 0), (0, 2)))
    return after[:, 1:-1] & ~after[:, 2:]
