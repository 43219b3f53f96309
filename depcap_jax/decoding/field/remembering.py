"""Selections that remember earlier passes: how long has it been so, and how many are due?"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.field.orders import ByConfidence, Order
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.select import Select, precedes

# As many divergences in a row must be small (KLASS).
_HISTORY = 2


class Seen(NamedTuple):
    """What KLASS keeps of each position of an answer."""

    last: numerics.Compressed  # [B, G, ...]: its distribution at the last pass that read it
    known: jax.Array  # [B, G] bool: there was one
    calm: jax.Array  # [B, G] int32: divergences in a row, up to now, that were below the threshold


class Divergence(NamedTuple):
    """KLASS's view of the block, for the trace."""

    divergence: jax.Array  # [B, L] nats, of the distribution from the last one; 0 where there was none
    calm: jax.Array  # [B, L] int32: passes in a row for which it was small


@policy
class StableAndConfident(Select):
    """KLASS (NeurIPS 2025): positions whose distribution has settled and that are confident.

    A position is ready if the divergence from its last distribution was below `kl_threshold` on two passes
    in a row, and c > conf_threshold. Distributions are kept as their K likeliest tokens and a floor for the
    others. Positions ahead of the block are not read, so a block's first two passes find nothing settled;
    the published program reads the whole answer on every pass.
    """

    exact = True
    conf_threshold: Number = setting(default=0.6, low=0, high=1, doc="what is ready is more confident")
    kl_threshold: Number = setting(
        default=0.01, low=0, doc="a distribution that has settled moved less (KL divergence, nats)"
    )
    top_k_cache: int = setting(
        default=64, low=1, high=numerics.MOST_KEPT, doc="tokens kept of each distribution"
    )

    @property
    def reads(self) -> Reads:
        """The distributions, compressed."""
        return Reads(top_k=self.top_k_cache)

    def init(self, batch: int, gen_length: int) -> Seen:
        """Nothing seen yet."""
        shape = (batch, gen_length)
        nothing = numerics.Compressed.none(shape, self.top_k_cache)
        return Seen(nothing, jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32))

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Seen
    ) -> tuple[jax.Array, Seen, Divergence]:
        """Takes what is ready."""
        assert prediction.top is not None
        before = numerics.window(memory, start, candidates.shape[-1])
        moved = numerics.kl_divergence(prediction.top, before.last)
        calm = jnp.where(before.known & (moved < self.kl_threshold), before.calm + 1, 0)
        confident = prediction.log_confidence > jnp.log(self.conf_threshold)
        ready = candidates & confident & (calm >= _HISTORY)
        seen = Seen(prediction.top, jnp.ones_like(before.known), calm)
        info = Divergence(jnp.where(before.known, moved, 0.0), calm)
        return ready, write_block(memory, seen, start, candidates), info


class Credit(NamedTuple):
    """What credit decoding keeps of each position of an answer."""

    token: jax.Array  # [B, G] int32: the most likely one at the last pass
    credit: jax.Array  # [B, G] float32: what it has gathered


@policy
class CreditThreshold(Select):
    """Credit decoding (dInfer, arXiv 2510.08666): a token that stays the most likely one gains confidence.

    On each pass over a block credit C decays by `decay`, and the most likely token's grows by c^boost; logits
    count with `weight` log(1 + C) more. The published program keeps a credit for every token of the
    vocabulary; here the most likely one alone has one, which is the same for as long as it stays that.
    """

    threshold: Number = setting(default=0.9, low=0, high=1, doc="least confidence of what is committed")
    weight: Number = setting(default=0.7, low=0, doc="what credit counts beside the logits (alpha)")
    decay: Number = setting(default=0.8, low=0, high=1, doc="what is left of a credit after a pass (beta)")
    boost: Number = setting(default=0.2, low=0, doc="power of the confidence that is credited (gamma)")

    def init(self, batch: int, gen_length: int) -> Credit:
        """No token has any."""
        shape = (batch, gen_length)
        return Credit(jnp.full(shape, -1, jnp.int32), jnp.zeros(shape, jnp.float32))

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Credit
    ) -> tuple[jax.Array, Credit, jax.Array]:
        """Takes what reaches the threshold with its credit; tells the confidences with it."""
        before, log_c = numerics.window(memory, start, candidates.shape[-1]), prediction.log_confidence
        kept = jnp.where(before.token == prediction.token, self.decay * before.credit, 0.0)
        credit = kept + jnp.exp(self.boost * log_c)
        # One logit more than the others': the odds, c / (1 - c), times (1 + C)^weight.
        odds = log_c - jnp.log(-jnp.expm1(log_c))
        lifted = jax.nn.log_sigmoid(odds + self.weight * jnp.log1p(credit))
        now = write_block(memory, Credit(prediction.token, credit), start, candidates)
        return candidates & (lifted >= jnp.log(self.threshold)), now, jnp.exp(lifted)


class Progress(NamedTuple):
    """How far a block is."""

    start: jax.Array  # [B] int32: where it begins; -1 before the first
    size: jax.Array  # [B] int32: positions that were open then
    passes: jax.Array  # [B] int32: passes before this one

    @classmethod
    def none(cls, batch: int) -> Progress:
        """Before the first block."""
        zeros = jnp.zeros(batch, jnp.int32)
        return cls(zeros - 1, zeros, zeros)

    def at(self, start: jax.Array, still_open: jax.Array) -> Progress:
        """That of the block at `start` [B], of which `still_open` [B] positions are open."""
        same = self.start == start
        return Progress(start, jnp.where(same, self.size, still_open), jnp.where(same, self.passes, 0))

    def after(self) -> Progress:
        """The same, one pass later."""
        return self._replace(passes=self.passes + 1)


@policy
class FallingThreshold(Select):
    """Streaming-dLLM's threshold (arXiv 2601.17917): the less of a block is open, the lower.

    tau = threshold (1 - fall (1 - r)), r being the open share of the block and of the `ahead` positions
    behind it, all of which are open.
    """

    threshold: Number = setting(default=0.9, low=0, high=1, doc="least confidence when a block begins")
    fall: Number = setting(default=0.4, low=0, high=1, doc="share of it that is gone in the end (alpha)")
    ahead: int = setting(default=96, low=0, doc="positions behind the block that count as open")

    def init(self, batch: int, gen_length: int) -> tuple[Progress, jax.Array]:
        """No block yet; the answer's length."""
        return Progress.none(batch), jnp.full(batch, gen_length, jnp.int32)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Any
    ) -> tuple[jax.Array, Any, jax.Array]:
        """Takes what reaches the threshold of the moment; tells that threshold."""
        before, gen_length = memory
        still_open = jnp.sum(candidates, axis=-1, dtype=jnp.int32)
        progress = before.at(start, still_open)
        behind = jnp.clip(gen_length - (start + progress.size), 0, self.ahead)
        whole = jnp.maximum(progress.size + behind, 1).astype(jnp.float32)
        gone = (progress.size - still_open).astype(jnp.float32) / whole
        bound = self.threshold * (1.0 - self.fall * gone)
        taken = candidates & (prediction.log_confidence >= jnp.log(bound)[:, None])
        return taken, (progress.after(), gen_length), bound


@policy
class Schedule(Select):
    """LLaDA's own timetable: a block takes its share of `steps` passes, each commits its share of it.

    What does not divide comes first: 5 positions in 2 passes are 3 and 2.
    """

    exact = True
    steps: int = setting(default=128, low=1, doc="passes of a whole answer")
    order: Order = dataclasses.field(default_factory=ByConfidence)
    """What the positions are ranked by."""

    @property
    def reads(self) -> Reads:
        """What the order reads."""
        return self.order.reads

    def init(self, batch: int, gen_length: int) -> tuple[Progress, jax.Array]:
        """No block yet; the answer's length."""
        return Progress.none(batch), jnp.full(batch, gen_length, jnp.int32)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Any
    ) -> tuple[jax.Array, Any, None]:
        """Takes as many of the surest as are due."""
        before, gen_length = memory
        progress = before.at(start, jnp.sum(candidates, axis=-1, dtype=jnp.int32))
        passes = jnp.maximum(self.steps * progress.size // gen_length, 1)
        due = progress.size // passes + (progress.passes < progress.size % passes).astype(jnp.int32)
        return surest(self.order(prediction), candidates, due), (progress.after(), gen_length), None


@policy
class DreamSchedule(Select):
    """Dream's own timetable: time falls from 1 to eps in `steps`, and of what is open, as large a share.

    For one block of the whole answer (`FixedBlocks(block_length=gen_length)`). Where the share of a pass
    rounds to none, Dream's program commits none; here each pass commits one at least.
    """

    exact = True
    steps: int = setting(default=128, low=1, doc="passes of a whole answer")
    eps: Number = setting(default=1e-3, low=0, high=1, doc="the last time before 0")
    order: Order = dataclasses.field(default_factory=ByConfidence)
    """What the positions are ranked by."""

    @property
    def reads(self) -> Reads:
        """What the order reads."""
        return self.order.reads

    def init(self, batch: int, gen_length: int) -> Progress:
        """No block yet."""
        return Progress.none(batch)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Progress
    ) -> tuple[jax.Array, Progress, None]:
        """Takes the share of this pass; on the last one, everything."""
        still_open = jnp.sum(candidates, axis=-1, dtype=jnp.int32)
        progress = memory.at(start, still_open)
        step = progress.passes.astype(jnp.float32)
        span = (1.0 - self.eps) / self.steps
        share = span / (1.0 - span * step)  # 1 - t' / t
        due = jnp.floor(still_open.astype(jnp.float32) * share).astype(jnp.int32)
        due = jnp.where(progress.passes >= self.steps - 1, still_open, due)
        return surest(self.order(prediction), candidates, due), progress.after(), None


def surest(score: jax.Array, candidates: jax.Array, count: jax.Array) -> jax.Array:
    """The first `count` [B] of the candidates [B, L], at least one, in the order of their score [B, L]."""
    ahead = precedes(score) & candidates[:, None, :]
    rank = jnp.sum(ahead, axis=-1, dtype=jnp.int32)
    return candidates & (rank < jnp.maximum(count, 1)[:, None])


def write_block(memory: Any, new: Any, start: jax.Array, where: jax.Array) -> Any:
    """`memory` [B, G, ...] with `new` [B, L, ...] from `start` on, at the places [B, L] that are meant."""

    def write(old: jax.Array, fresh: jax.Array) -> jax.Array:
        index = start[:, None] + jnp.arange(where.shape[-1], dtype=jnp.int32)[None]
        index = jnp.where(where, index, old.shape[1])  # beyond the end: dropped
        rows = jnp.arange(old.shape[0], dtype=jnp.int32)[:, None]
        return old.at[rows, index].set(fresh, mode="drop")

    return jax.tree.map(write, memory, new)
