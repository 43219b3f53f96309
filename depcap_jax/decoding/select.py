"""Which positions now? The paper's second decision: what to commit together inside the block.

The loop itself always commits the most confident open position of the block, so a policy only says
what may be committed beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.policy import Number, checked, policy, setting


class Change(NamedTuple):
    """The decision of a selection that revokes.

    The loop takes back fewer positions than the turn commits, the first ones of those named, so that it
    ends; and none but those of the block that this decode committed, on this turn or before.
    """

    commit: jax.Array
    """[B, L] bool: which of the candidates to commit."""
    revoke: jax.Array
    """[B, L] bool: what is to be open again."""


class Select(Protocol):
    """A rule for what to commit. A class may also have three attributes:

    `reads`, a `Reads`: what it reads of each position; nothing beside token and confidence by default.
    `exact`, a bool: True if what it names is all that is committed; the loop adds the most confident
    position only where it names none.
    `revokes`, a bool: True if its decision is a `Change`, which may also take back what was committed.
    """

    def init(self, batch: int, gen_length: int) -> Any:
        """Its memory before the first pass: None, or a pytree whose leaves begin with the batch axis."""

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Any
    ) -> tuple[Any, Any, Any]:
        """Which of the candidates to commit [B, L] bool; the new memory; and its info, as a partition's.

        Args:
          prediction: of the L positions from each block's start, L being the longest block.
          candidates: [B, L] bool: open, inside the block, and the row takes part in this pass.
          start: [B] the block's first position, from the answer's start.
          memory: what the last call returned. That of rows that take no part is kept by the loop.
        """
        ...


def as_change(select: Any, decision: Any, shape: tuple[int, ...]) -> Change:
    """What a selection decided, if it is what the selection says that it returns."""
    revokes = getattr(select, "revokes", False)
    if isinstance(decision, Change) != revokes:
        raise ValueError(
            f"{type(select).__name__} must return {'a Change' if revokes else 'flags'}, got "
            f"{type(decision).__name__}; a selection with `revokes = True` returns a Change, others flags"
        )
    parts = decision if revokes else Change(decision, jnp.zeros(shape, bool))
    return Change(*(checked(select, part, jnp.bool_, shape) for part in parts))


def fewer(flags: jax.Array, *, than: jax.Array) -> jax.Array:
    """The first of the flags [B, L], fewer in each row than those of the other ones [B, L]."""
    most = jnp.sum(than, axis=1, keepdims=True, dtype=jnp.int32)
    return flags & (jnp.cumsum(flags, axis=1, dtype=jnp.int32) < most)


@policy
class TopOne(Select):
    """Vanilla decoding (LLaDA, low-confidence remasking): the most confident position alone."""

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Adds nothing to the loop's own choice."""
        return jnp.zeros_like(candidates), None, None


@policy
class ConfidenceThreshold(Select):
    """Fast-dLLM's threshold rule: every position with c >= threshold."""

    threshold: Number = setting(default=0.9, low=0, high=1, doc="least confidence of what is committed")

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Takes what is confident enough by itself."""
        return candidates & (prediction.log_confidence >= jnp.log(self.threshold)), None, None


@policy
class FactorThreshold(Select):
    """Fast-dLLM's factor rule: ranks n = 1, 2, ... by confidence while c_(n) >= 1 - factor / (n + 1)."""

    factor: Number = setting(default=1.0, low=0, doc="Fast-dLLM's factor f")

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Takes the longest run of ranks that all pass."""
        ahead = precedes(prediction.log_confidence) & candidates[:, None, :]
        rank = 1 + jnp.sum(ahead, axis=-1, dtype=jnp.int32)
        bound = 1.0 - self.factor / (rank + 1).astype(jnp.float32)
        passes = prediction.log_confidence >= jnp.log(jnp.maximum(bound, 0.0))
        blocked = jnp.any(ahead & ~passes[:, None, :], axis=-1)
        return candidates & passes & ~blocked, None, None


class ConflictGraph(NamedTuple):
    """CAP-Decoding's view of the block, for the trace."""

    conflicts: jax.Array
    """[B, L, L] bool: the members of the pool that conflict with each other, D_ij > gamma; symmetric."""


@policy
class ConflictFree(Select):
    """CAP-Decoding (DepCap, section 4.3, algorithm 1): a conflict-free subset of the candidates.

    Candidates have c >= tau_low, and i conflicts with j where D_ij = log p_i(y_j) + log p_j(y_i) > gamma.
    All with c >= tau_high are taken at once; then the rest greedily by confidence, each pick removing what
    conflicts with it.
    """

    tau_low: Number = setting(default=0.8, low=0, high=1, doc="least confidence of a candidate")
    tau_high: Number = setting(
        default=0.95, low=0, high=1, doc="what has this confidence is committed whatever it conflicts with"
    )
    gamma: Number = setting(default=-16.0, doc="two positions conflict where their score is above")

    reads = Reads(pairs=True)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, ConflictGraph]:
        """Runs both phases; the greedy one in parallel rounds."""
        assert prediction.pairs is not None
        log_c = prediction.log_confidence
        pool = candidates & (log_c >= jnp.log(self.tau_low))
        certain = pool & (log_c >= jnp.log(self.tau_high))
        score = prediction.pairs + jnp.swapaxes(prediction.pairs, 1, 2)  # D_ij, the paper's eq. (conflict)
        off_diagonal = ~jnp.eye(log_c.shape[-1], dtype=bool)[None]
        conflicts = (score > self.gamma) & off_diagonal & pool[:, :, None] & pool[:, None, :]
        rest = pool & ~certain & ~_touches(conflicts, certain)
        taken = certain | greedy_independent_set(conflicts, log_c, rest)
        return taken, None, ConflictGraph(conflicts)


def precedes(log_confidence: jax.Array) -> jax.Array:
    """[B, i, j]: j comes before i in the order of descending confidence, ties by position."""
    mine, other = log_confidence[:, :, None], log_confidence[:, None, :]
    index = jnp.arange(log_confidence.shape[-1], dtype=jnp.int32)
    return (other > mine) | ((other == mine) & (index[None, None, :] < index[None, :, None]))


def greedy_independent_set(conflict: jax.Array, log_confidence: jax.Array, pool: jax.Array) -> jax.Array:
    """The set that picking from `pool` [B, L] one by one, most confident first, would give.

    That set is unique, so it is found in a few parallel rounds: each takes every remaining position
    that no remaining conflicting neighbour precedes, and removes what conflicts with them.
    """
    stronger_neighbour = conflict & precedes(log_confidence)

    def round_(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, remaining = carry
        pick = remaining & ~_touches(stronger_neighbour, remaining)
        return taken | pick, remaining & ~pick & ~_touches(conflict, pick)

    taken, _ = lax.while_loop(lambda carry: jnp.any(carry[1]), round_, (jnp.zeros_like(pool), pool))
    return taken


def _touches(edges: jax.Array, members: jax.Array) -> jax.Array:
    """[B, i]: some member j has an edge [B, i, j] to i."""
    return jnp.any(edges & members[:, None, :], axis=-1)
