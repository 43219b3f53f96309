"""Selections that look at one pass alone: which positions are sure enough, or far enough apart?"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.field.orders import ByConfidence, Order
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.select import Select, precedes


@policy
class LocalLeap(Select):
    """LocalLeap: beside a position that is sure, less confidence will do.

    Anchors are candidates with c >= threshold; within `radius` positions of one, `relaxed_threshold` is
    enough.
    """

    threshold: Number = setting(default=0.9, low=0, high=1, doc="least confidence of what is committed")
    relaxed_threshold: Number = setting(
        default=0.75, low=0, high=1, doc="least confidence near a position that reaches the threshold"
    )
    radius: int = setting(default=4, low=0, doc="how far, in positions, the relaxed threshold reaches")

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Takes the anchors, and what is nearly as sure beside them."""
        log_c = prediction.log_confidence
        anchors = candidates & (log_c >= jnp.log(self.threshold))
        index = jnp.arange(log_c.shape[-1], dtype=jnp.int32)
        close = jnp.abs(index[:, None] - index[None, :]) <= self.radius
        near = jnp.any(anchors[:, None, :] & close[None], axis=-1)
        bound = jnp.where(near, jnp.minimum(self.relaxed_threshold, self.threshold), self.threshold)
        return candidates & (log_c >= jnp.log(bound)), None, None


@policy
class Hierarchy(Select):
    """Hierarchical decoding (dInfer, arXiv 2510.08666): the surest position of each run of masks.

    Tokens that are committed together stand apart, so that each pass cuts the runs in pieces. Beside them,
    whatever has c > threshold.
    """

    threshold: Number = setting(default=0.76, low=0, high=1, doc="what is more confident is committed")
    low_threshold: Number = setting(
        default=0.62, low=0, high=1, doc="the best position of a run is committed if it is more confident"
    )

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Takes the best of each run, ties by position, and all above the threshold."""
        log_c = prediction.log_confidence
        begins = numerics.beginnings(candidates)
        run = jnp.cumsum(begins, axis=-1, dtype=jnp.int32)
        rivals = candidates[:, None, :] & (run[:, :, None] == run[:, None, :])
        best_of_run = ~jnp.any(rivals & precedes(log_c), axis=-1)
        sure = log_c > jnp.log(self.threshold)
        return candidates & (sure | (best_of_run & (log_c > jnp.log(self.low_threshold)))), None, None


@policy
class FrechetProfile(Select):
    """Fast-dLLM++ (arXiv 2606.02955): as many ranks as their joint probability surely bears.

    Of the n surest positions all are right with a probability of at least 1 - sum(1 - c), Frechet's bound.
    The largest n is taken for which that exceeds the doubt in the n-th, 1 - c_(n), by more than delta.
    """

    delta: Number = setting(default=0.25, low=0, high=1, doc="by how much the bound must exceed the doubt")

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Takes the ranks up to the first that fails: the gain falls with n."""
        doubt = -jnp.expm1(prediction.log_confidence)  # 1 - c, without a difference
        upto = ranked_upto(prediction.log_confidence, candidates)
        bound = jnp.maximum(1.0 - jnp.sum(jnp.where(upto, doubt[:, None, :], 0.0), axis=-1), 0.0)
        return candidates & (bound - doubt > self.delta), None, None


@policy
class EntropyBound(Select):
    """EB-Sampler (arXiv 2505.24857): as many ranks as cost little joint entropy.

    The longest run of ranks U with sum(H) - max(H) <= gamma over U, the bound on what committing them
    independently loses.
    """

    exact = True
    gamma: Number = setting(default=0.001, low=0, doc="most entropy, in nats, beside the largest")
    order: Order = dataclasses.field(default_factory=ByConfidence)
    """What the positions are ranked by."""

    @property
    def reads(self) -> Reads:
        """The entropy, and what the order reads."""
        return self.order.reads._replace(entropy=True)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Takes rank 1 always; the bound never falls along the ranks."""
        assert prediction.entropy is not None
        upto = ranked_upto(self.order(prediction), candidates)
        entropies = jnp.where(upto, prediction.entropy[:, None, :], 0.0)
        return candidates & (_sum_but_the_largest(entropies) <= self.gamma), None, None


def _sum_but_the_largest(x: jax.Array) -> jax.Array:
    """The sum over the last axis of all but one largest entry: no difference, so tiny ones count."""
    index = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    largest = index == numerics.argmax(x)[..., None]
    return jnp.sum(jnp.where(largest, 0.0, x), axis=-1)


def ranked_upto(score: jax.Array, candidates: jax.Array) -> jax.Array:
    """[B, i, j]: candidate j is i, or comes before it by score."""
    itself = jnp.eye(score.shape[-1], dtype=bool)[None]
    return (precedes(score) | itself) & candidates[:, None, :]
