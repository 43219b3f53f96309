"""Selections that also take back what they committed."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction
from depcap_jax.decoding.field.remembering import surest, write_block
from depcap_jax.decoding.policy import policy, setting
from depcap_jax.decoding.select import Change, Select, precedes

# Of so many positions that a pass commits, one is revoked (Saber).
_SHARE = 8


class Confidences(NamedTuple):
    """What Saber keeps of each position of an answer; -1 where there was none."""

    last: jax.Array  # [B, G] float32: c at the last pass that read it
    committed: jax.Array  # [B, G] float32: c when it was last committed, whether it stayed or not


class Revision(NamedTuple):
    """Saber's view of the block, for the trace."""

    bound: jax.Array  # [B] the threshold of the moment
    change: jax.Array  # [B, L] c at this pass less c at the one before; 0 where there is no such pass
    revoked: jax.Array  # [B, L] bool


@policy
class Saber(Select):
    """Saber (adaptive acceleration, and remasking what has become doubtful), for one block of a whole answer.

    A pass commits what is more confident than its earlier commits were on average, and no fewer than
    `least`. Then it revokes, for every eighth position that it committed, the one whose confidence fell most
    since the last pass: max(least // 2, ceil(count / 8)) of them, and fewer than it committed. What is read
    for the first time is not revoked. Confidence is that of the likeliest token, also where another one
    stands, as in the published program.
    """

    exact = True
    revokes = True
    least: int = setting(default=2, low=1, doc="positions that a pass commits at least (n)")

    def init(self, batch: int, gen_length: int) -> Confidences:
        """Nothing read yet."""
        nothing = jnp.full((batch, gen_length), -1.0, jnp.float32)
        return Confidences(nothing, nothing)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Confidences
    ) -> tuple[Change, Confidences, Revision]:
        """Takes what is more confident than the mean, and takes back what became doubtful."""
        width, gen_length = candidates.shape[-1], memory.last.shape[-1]
        c, before = jnp.exp(prediction.log_confidence), numerics.window(memory, start, width)
        commit, bound = self._commit(c, candidates, memory.committed)
        in_answer = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None] < gen_length
        standing = commit | (~candidates & (before.committed >= 0) & in_answer)
        known = before.last >= 0
        change = jnp.where(known & (candidates | standing), c - before.last, 0.0)
        revoke = self._revoke(change, standing & known, jnp.sum(commit, axis=-1, dtype=jnp.int32))
        now = Confidences(
            write_block(memory.last, c, start, candidates | standing),
            write_block(memory.committed, c, start, commit),
        )
        return Change(commit, revoke), now, Revision(bound, change, revoke)

    def _commit(
        self, c: jax.Array, candidates: jax.Array, committed: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """What is more confident than the mean of all commits so far, or the best; and that mean [B]."""
        count = jnp.sum(committed >= 0, axis=-1, dtype=jnp.int32)
        mean = jnp.sum(jnp.maximum(committed, 0.0), axis=-1) / jnp.maximum(count, 1).astype(jnp.float32)
        bound = jnp.where(count > 0, mean, 1.0)
        above = candidates & (c > bound[:, None])
        enough = jnp.sum(above, axis=-1, dtype=jnp.int32) >= self.least
        best = surest(c, candidates, jnp.full_like(count, self.least))
        return jnp.where(enough[:, None], above, best), bound

    def _revoke(self, change: jax.Array, standing: jax.Array, count: jax.Array) -> jax.Array:
        """Those of the standing positions that fell most, for a pass that commits `count` [B]."""
        due = jnp.minimum(jnp.maximum(self.least // 2, -(-count // _SHARE)), count - 1)
        ahead = precedes(-change) & standing[:, None, :]
        return standing & (jnp.sum(ahead, axis=-1, dtype=jnp.int32) < due[:, None])
