"""Which positions now? The paper's second decision: what to commit together inside the block.

The loop itself always commits the most confident open position of the block, so a policy only says
what may be committed beside it. Axis letters: B rows, W window positions, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.numerics import Summary
from depcap_jax.decoding.policy import check_range, policy


class Prediction(NamedTuple):
    """What the model says of each window position."""

    logits: jax.Array  # [B, W, V] float32
    summary: Summary  # [B, W]
    token: jax.Array  # [B, W] int32: the token that would be committed, y
    log_confidence: jax.Array  # [B, W] float32: log c, the log-probability of that token


class Select(Protocol):
    """A rule for what to commit; a frozen dataclass that is a pytree."""

    def __call__(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """Chooses among `candidates` [B, W] bool (open, inside the block); returns [B, W] bool."""
        ...


@policy
class TopOne:
    """Vanilla decoding (LLaDA, low-confidence remasking): the most confident position alone."""

    def __call__(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """Adds nothing to the loop's own choice."""
        return jnp.zeros_like(candidates)


@policy
class ConfidenceThreshold:
    """Fast-dLLM's threshold rule: every position with c >= threshold."""

    threshold: float | jax.Array = 0.9

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0.0, 1.0)

    def __call__(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """Takes what is confident enough by itself."""
        return candidates & (prediction.log_confidence >= jnp.log(self.threshold))


@policy
class FactorThreshold:
    """Fast-dLLM's factor rule: ranks n = 1, 2, ... by confidence while c_(n) >= 1 - factor / (n + 1)."""

    factor: float | jax.Array = 1.0

    def __post_init__(self) -> None:
        check_range("factor", self.factor, 0.0, None)

    def __call__(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """Takes the longest run of ranks that all pass."""
        ahead = precedes(prediction.log_confidence) & candidates[:, None, :]
        rank = 1 + jnp.sum(ahead, axis=-1)
        bound = 1.0 - self.factor / (rank + 1)
        passes = prediction.log_confidence >= jnp.log(jnp.maximum(bound, 0.0))
        blocked = jnp.any(ahead & ~passes[:, None, :], axis=-1)
        return candidates & passes & ~blocked


class ConflictGraph(NamedTuple):
    """CAP-Decoding's view of the window."""

    pool: jax.Array  # [B, W] bool: the candidates with c >= tau_low
    certain: jax.Array  # [B, W] bool: those of them with c >= tau_high
    conflict: jax.Array  # [B, W, W] bool: D_ij > gamma, symmetric; also outside the pool


@policy
class ConflictFree:
    """CAP-Decoding (DepCap, section 4.3, algorithm 1): a conflict-free subset of the candidates.

    Candidates have c >= tau_low, and i conflicts with j where D_ij > gamma. All with c >= tau_high are
    taken at once; then the rest greedily by confidence, each pick removing what conflicts with it.
    """

    tau_low: float | jax.Array = 0.8
    tau_high: float | jax.Array = 0.95
    gamma: float | jax.Array = -16.0

    def __post_init__(self) -> None:
        check_range("tau_low", self.tau_low, 0.0, 1.0)
        check_range("tau_high", self.tau_high, 0.0, 1.0)
        check_range("gamma", self.gamma, None, None)

    def __call__(self, prediction: Prediction, candidates: jax.Array) -> jax.Array:
        """Runs both phases; the greedy one in parallel rounds."""
        pool, certain, conflict = self.graph(prediction, candidates)
        rest = pool & ~certain & ~_touches(conflict, certain)
        return certain | greedy_independent_set(conflict, prediction.log_confidence, rest)

    def graph(self, prediction: Prediction, candidates: jax.Array) -> ConflictGraph:
        """What both phases look at: the pool C, who is certain, and who conflicts with whom."""
        log_c = prediction.log_confidence
        pool = candidates & (log_c >= jnp.log(self.tau_low))
        certain = pool & (log_c >= jnp.log(self.tau_high))
        off_diagonal = ~jnp.eye(log_c.shape[-1], dtype=bool)
        conflict = (conflict_score(prediction) > self.gamma) & off_diagonal
        return ConflictGraph(pool, certain, conflict)


def conflict_score(prediction: Prediction) -> jax.Array:
    """D_ij = log p_i(y_j) + log p_j(y_i), the paper's eq. (conflict), for all pairs [B, W, W]."""
    tokens = jnp.broadcast_to(
        prediction.token[:, None, :], prediction.token.shape + prediction.token.shape[1:]
    )
    logit = jnp.take_along_axis(prediction.logits, tokens, axis=-1)  # [B, i, j]: logit of y_j at i
    summary = Summary(*(field[..., None] for field in prediction.summary))
    log_p = summary.log_prob(logit)
    return log_p + jnp.swapaxes(log_p, 1, 2)


def precedes(log_confidence: jax.Array) -> jax.Array:
    """[B, i, j]: j comes before i in the order of descending confidence, ties by position."""
    mine, other = log_confidence[:, :, None], log_confidence[:, None, :]
    index = jnp.arange(log_confidence.shape[-1])
    return (other > mine) | ((other == mine) & (index[None, :] < index[:, None]))


def greedy_independent_set(conflict: jax.Array, log_confidence: jax.Array, pool: jax.Array) -> jax.Array:
    """The set that picking from `pool` [B, W] one by one, most confident first, would give.

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
