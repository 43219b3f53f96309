"""Selections that read attention: positions that look at each other are not committed together."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.field.remembering import Progress
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.select import Select, greedy_independent_set

_LAYERS = setting(default=4, low=1, doc="last layers whose attention is averaged")


class _Attending(Select):
    """A selection that reads the attention of the last `layers` layers."""

    layers: int

    @property
    def reads(self) -> Reads:
        """The attention."""
        return Reads(attention=self.layers)


class Dependence(NamedTuple):
    """Which positions of the block were held to depend on each other, for the trace."""

    conflicts: jax.Array
    """[B, L, L] bool: those that may not be committed together; symmetric."""


@policy
class CLAD(_Attending):
    """CLAD (arXiv 2605.29607): runs of sure positions; of two that look at each other one waits.

    Clusters are the longest runs of neighbours with c >= threshold. Two are as close as the most that a
    position of one has to do with those of the other, on average. Where each is the other's closest, and no
    less close than both are to the rest (where there are but two: than 1.2 / the block's length), the shorter
    one waits.
    """

    exact = True
    threshold: Number = setting(default=0.75, low=0, high=1, doc="least confidence of what is committed")
    layers: int = _LAYERS

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, Dependence]:
        """Takes all clusters but those that wait; of equal ones the first is taken."""
        assert prediction.attention is not None
        looks = prediction.attention.within
        relation = _off_diagonal(jnp.maximum(looks, jnp.swapaxes(looks, 1, 2)))
        sure = candidates & (prediction.log_confidence >= jnp.log(self.threshold))
        begins = numerics.beginnings(sure)
        cluster = jnp.where(sure, jnp.cumsum(begins, axis=-1, dtype=jnp.int32) - 1, -1)
        index = jnp.arange((sure.shape[-1] + 1) // 2, dtype=jnp.int32)[None]  # no more fit into a block
        member = cluster[:, None, :] == index[:, :, None]
        size = jnp.sum(member, axis=-1, dtype=jnp.int32)

        closeness = _closeness(relation, member, size)
        strongest, close = numerics.argmax(closeness), jnp.max(closeness, axis=-1)
        count = jnp.sum(size > 0, axis=-1, keepdims=True, dtype=jnp.int32)
        others = jnp.maximum(count - 1, 1).astype(jnp.float32)
        usual = jnp.sum(jnp.maximum(closeness, 0.0), axis=-1) / others
        length = jnp.sum(prediction.attention.inside, axis=-1, keepdims=True, dtype=jnp.float32)
        least = jnp.maximum(usual, numerics.take(usual, strongest))
        least = jnp.where(count > 2, least, 1.2 / jnp.maximum(length, 1.0))
        paired = (numerics.take(strongest, strongest) == index) & (close >= least)
        rival = numerics.take(size, strongest)
        waits = paired & ((rival > size) | ((rival == size) & (strongest < index)))

        partner = numerics.take(jnp.where(paired, strongest, -2), jnp.maximum(cluster, 0))
        conflicts = (partner[:, :, None] == cluster[:, None, :]) & sure[:, :, None]
        return jnp.any(member & ~waits[:, :, None], axis=1), None, Dependence(conflicts)


def _closeness(relation: jax.Array, member: jax.Array, size: jax.Array) -> jax.Array:
    """How close clusters [B, C, L] of `size` [B, C] are [B, C, C], by the relation [B, L, L].

    -1 for a cluster and itself, and for those that are empty.
    """
    shares = member.astype(jnp.float32) / jnp.maximum(size, 1).astype(jnp.float32)[..., None]
    to_cluster = jnp.einsum("bij,bcj->bic", relation, shares, precision=lax.Precision.HIGHEST)
    most = jnp.max(jnp.where(member[..., None], to_cluster[:, None], 0.0), axis=2)
    present = size > 0
    two = present[:, :, None] & present[:, None, :] & ~jnp.eye(size.shape[-1], dtype=bool)[None]
    return jnp.where(two, jnp.maximum(most, jnp.swapaxes(most, 1, 2)), -1.0)


@policy
class DAPD(_Attending):
    """DAPD (arXiv 2603.12996): positions that hardly look at each other, whatever their confidence.

    i and j conflict where (a_ij + a_ji) / 2 > tau. A greedy independent set is taken, in the order of degree
    times confidence; tau rises from tau_min to tau_max with the share of the block that is done. When less
    than `switch_ratio` of it is open, all with c > threshold are taken in its place.

    The defaults are its authors', for one block; CLAD's authors ran it in blocks of 32 with 0.001 and 0.004.
    """

    exact = True
    tau_min: Number = setting(default=0.01, low=0, high=1, doc="attention that is a conflict, at first")
    tau_max: Number = setting(default=0.05, low=0, high=1, doc="attention that is a conflict, in the end")
    switch_ratio: Number = setting(
        default=0.5, low=0, high=1, doc="open share of the block below which confidence alone decides"
    )
    threshold: Number = setting(default=0.9, low=0, high=1, doc="then what is more confident is committed")
    layers: int = _LAYERS

    def init(self, batch: int, gen_length: int) -> Progress:
        """No block yet."""
        return Progress.none(batch)

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: Progress
    ) -> tuple[jax.Array, Progress, Dependence]:
        """Takes a spread set at first, and later what is sure."""
        assert prediction.attention is not None
        still_open = jnp.sum(candidates, axis=-1, dtype=jnp.int32)
        progress = memory.at(start, still_open)
        left = still_open.astype(jnp.float32) / jnp.maximum(progress.size, 1).astype(jnp.float32)
        among = candidates[:, :, None] & candidates[:, None, :]
        looks = prediction.attention.within
        score = jnp.where(among, _off_diagonal((looks + jnp.swapaxes(looks, 1, 2)) / 2), 0.0)
        tau = self.tau_min + (self.tau_max - self.tau_min) * (1.0 - left)
        spreads = left >= self.switch_ratio
        conflicts = (score > tau[:, None, None]) & spreads[:, None, None]
        order = jnp.sum(score, axis=-1) * jnp.exp(prediction.log_confidence)
        spread = greedy_independent_set(conflicts, order, candidates)
        sure = candidates & (prediction.log_confidence > jnp.log(self.threshold))
        return jnp.where(spreads[:, None], spread, sure), progress.after(), Dependence(conflicts)


@policy
class DAWN(_Attending):
    """DAWN (arXiv 2602.06953): sure positions, those that look at sure ones, and some that look at neither.

    An edge leads from a position to what it looks at with a weight of at least tau_edge, sinks aside. Taken
    are all with c >= threshold; those with an edge to an anchor and c >= tau_induce; and of the others with
    c >= tau_low that have no edge to these, an independent set, greedily by confidence.

    Where this is not its authors' program:

    - Anchors are committed positions that the model is sure of at this pass, too. The head is read inside the
      block alone: outside of it, whatever is committed or given counts as sure.
    - A sink is a key that the queries of the whole canvas look at, by their mean. Only the block's are at
      hand, and their mean would call each near neighbour a sink: so here it is their median.
    - The third group has no edge to the first two. The program asks that of what is in both.
    - Dream's attention is that of the query which predicts a position. The program takes the one after it.
    - The program's greedy loop may overwrite the prompt's first token. This one commits candidates only.
    """

    exact = True
    tau_sink: Number = setting(default=0.01, low=0, high=1, doc="what all look at more than this is a sink")
    tau_edge: Number = setting(default=0.07, low=0, high=1, doc="least attention of an edge")
    tau_induce: Number = setting(default=0.7, low=0, high=1, doc="least confidence beside an anchor")
    tau_low: Number = setting(default=0.75, low=0, high=1, doc="least confidence elsewhere")
    threshold: Number = setting(default=0.9, low=0, high=1, doc="least confidence of what is sure")
    layers: int = _LAYERS

    def __call__(
        self, prediction: Prediction, candidates: jax.Array, start: jax.Array, memory: None
    ) -> tuple[jax.Array, None, Dependence]:
        """Takes the three groups; the most confident position where all are empty."""
        attention, log_c = prediction.attention, prediction.log_confidence
        assert attention is not None
        sink = _median(attention.weights, attention.inside) > self.tau_sink
        looks = jnp.where(sink[:, None, :], 0.0, attention.weights)
        within = _off_diagonal(attention._replace(weights=looks).within)
        edges = (within >= self.tau_edge) & (within > 0)

        sure = log_c >= jnp.log(self.threshold)
        canvas = jnp.arange(looks.shape[-1], dtype=jnp.int32)[None]
        end = attention.start + jnp.sum(attention.inside, axis=-1, dtype=jnp.int32)
        in_block = (canvas >= attention.start[:, None]) & (canvas < end[:, None])
        known = ~attention.open & ~in_block
        induced = jnp.any((looks >= self.tau_edge) & (looks > 0) & known[:, None, :], axis=-1)
        anchors = attention.inside & ~candidates & sure
        induced |= jnp.any(edges & anchors[:, None, :], axis=-1)

        settled = candidates & (sure | (induced & (log_c >= jnp.log(self.tau_induce))))
        rest = candidates & ~settled & (log_c >= jnp.log(self.tau_low))
        rest &= ~jnp.any(edges & settled[:, None, :], axis=-1)
        conflicts = (edges | jnp.swapaxes(edges, 1, 2)) & rest[:, :, None] & rest[:, None, :]
        return settled | greedy_independent_set(conflicts, log_c, rest), None, Dependence(conflicts)


def _off_diagonal(x: jax.Array) -> jax.Array:
    """x [B, L, L] with zeros on its diagonal."""
    return jnp.where(jnp.eye(x.shape[-1], dtype=bool)[None], 0.0, x)


def _median(x: jax.Array, inside: jax.Array) -> jax.Array:
    """[B, T]: the lower median of each column of x [B, L, T], over the rows that are `inside` [B, L]."""
    ordered = jnp.sort(jnp.where(inside[:, :, None], x, jnp.inf), axis=1)
    middle = (jnp.maximum(jnp.sum(inside, axis=-1, dtype=jnp.int32), 1) - 1) // 2
    return numerics.take(ordered, middle[:, None, None], axis=1)[:, 0]
