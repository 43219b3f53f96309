"""Stable float32: what the policies compute from logits, arranged so that it decides like float64.

A peaked distribution is 1 minus something tiny, so nothing here is ever computed as that difference.
With z = logits - max and s = the sum of exp(z) without the maximum's own term:

    log Z        = max + log1p(s)
    log p(best)  = -log1p(s)                      keeps its relative precision near probability 1
    entropy      = log1p(s) - sum(exp(z) z) / (1 + s)
    tail mass    = the sum of exp(z) over what is *not* in the top K, over 1 + s

The `...` of a shape are any leading axes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

_Tree = TypeVar("_Tree")

# A token's probability rounds to 1 in float64 when everything else weighs less than this.
_FLOAT64_HALF_ULP = 2.0**-53
# Stands in for log 0: finite, so that 0 * log 0 is 0.
_LOG_ZERO = -1e30
# How far a divergence may be off, relative to its terms: 16 times the rounding of a float32.
_ROUNDING = 2.0**-20
# Chunks of this many logits are reduced first, on CPUs.
_CHUNK = 64


class Summary(NamedTuple):
    """What one reduction over the vocabulary tells of each distribution; all float32 [...]."""

    peak: jax.Array  # the largest logit
    rest: jax.Array  # s: the mass of everything but the peak, relative to the peak's

    def log_prob(self, logit: jax.Array) -> jax.Array:
        """Log-probabilities of logits [...], exact near probability 1."""
        return (logit - self.peak) - jnp.log1p(self.rest)

    def log_confidence(self, logit: jax.Array) -> jax.Array:
        """`log_prob` with the resolution of a float64 probability: what rounds to 1 there is 0 here."""
        rest = jnp.where(self.rest <= _FLOAT64_HALF_ULP, 0.0, self.rest)
        return (logit - self.peak) - jnp.log1p(rest)


def summarise(logits: jax.Array) -> Summary:
    """Reduces float32 logits [..., V]; -inf is probability 0, a peak that is not finite shows in `peak`."""
    peak = jnp.max(logits, axis=-1)
    ids = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    others = jnp.where(ids == argmax(logits)[..., None], -jnp.inf, logits - peak[..., None])
    return Summary(peak, jnp.sum(jnp.exp(others), axis=-1))


def entropy(logits: jax.Array, summary: Summary) -> jax.Array:
    """Shannon entropy in nats [...] of logits [..., V]: H_k, the paper's predictive uncertainty."""
    z = jnp.maximum(logits - summary.peak[..., None], _LOG_ZERO)
    mean_z = jnp.einsum("...v,...v->...", jnp.exp(z), z, precision=lax.Precision.HIGHEST)
    return jnp.log1p(summary.rest) - mean_z / (1.0 + summary.rest)


def take(x: jax.Array, index: jax.Array, axis: int = -1) -> jax.Array:
    """`jnp.take_along_axis` where every index is known to be valid: the program has no checks."""
    return jnp.take_along_axis(x, index, axis=axis, mode="promise_in_bounds")


def window(tree: Any, start: jax.Array, width: int) -> Any:
    """What arrays [B, G, ...] hold at [start, start + width) of each row, clamped to the last entry."""

    def read(x: jax.Array) -> jax.Array:
        index = jnp.minimum(start[:, None] + jnp.arange(width, dtype=jnp.int32)[None], x.shape[1] - 1)
        return take(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)

    return jax.tree.map(read, tree)


def as_int32(x: jax.Array) -> jax.Array:
    """Integers as int32; what 32 bits do not hold becomes the nearest that they do, and does not wrap."""
    if jnp.iinfo(x.dtype).bits > 32:
        x = jnp.clip(x, max(-(2**31), jnp.iinfo(x.dtype).min), 2**31 - 1)
    return x.astype(jnp.int32)


def first(flags: jax.Array) -> jax.Array:
    """Index, int32, of the first True over the last axis; its size if there is none."""
    ids = lax.broadcasted_iota(jnp.int32, flags.shape, flags.ndim - 1)
    return jnp.min(jnp.where(flags, ids, flags.shape[-1]), axis=-1)


def beginnings(flags: jax.Array) -> jax.Array:
    """Those of the flags [B, L] with which a run of them begins."""
    return flags & ~jnp.pad(flags, ((0, 0), (1, 0)))[:, :-1]


def if_any(flags: jax.Array, compute: Callable[[], _Tree]) -> _Tree:
    """What `compute` returns if any of the `flags` is set, else zeros in its place."""
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(compute))
    return lax.cond(jnp.any(flags), compute, lambda: nothing)


def vary_like(tree: _Tree, *like: Any) -> _Tree:
    """`tree`, varying over the axes of a `shard_map` around that any array of `like` varies over.

    What a loop carries has one type from its first turn on: zeros too are said to vary.
    """

    def axes(tree: Any) -> frozenset[str]:
        kinds: list[Any] = [jax.typeof(leaf) for leaf in jax.tree.leaves(tree)]
        # Before jax 0.10 the names were others.
        varying = (kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying for kind in kinds)
        return frozenset().union(*varying)

    def vary(leaf: jax.Array) -> jax.Array:
        missing = tuple(wanted - axes(leaf))
        if hasattr(lax, "pcast"):
            return lax.pcast(leaf, missing, to="varying")
        return lax.pvary(leaf, missing)  # type: ignore[reportAttributeAccessIssue]  # before jax 0.8.2

    wanted = axes(like)
    return jax.tree.map(vary, tree)


def argmax(x: jax.Array) -> jax.Array:
    """Index, int32, of the first maximum over the last axis."""
    return lax.platform_dependent(x, cpu=_argmax_in_chunks, default=_plain_argmax)


def _plain_argmax(x: jax.Array) -> jax.Array:
    return lax.argmax(x, x.ndim - 1, jnp.int32)


def _argmax_in_chunks(x: jax.Array) -> jax.Array:
    """In two short steps: ten times as fast on a CPU; elsewhere it would only cost memory."""
    size = x.shape[-1]
    if size % _CHUNK or size <= _CHUNK:
        return _plain_argmax(x)
    chunks = x.reshape(*x.shape[:-1], size // _CHUNK, _CHUNK)
    best = _plain_argmax(jnp.max(chunks, axis=-1))
    inside = take(chunks, best[..., None, None], axis=-2)[..., 0, :]
    return best * _CHUNK + _plain_argmax(inside)


def top_k(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The k largest values of the last axis and their indices; equal to `lax.top_k` but for ties."""
    plain, in_chunks = (functools.partial(form, k=k) for form in (_plain_top_k, _top_k_in_chunks))
    values, ids = lax.platform_dependent(x, cpu=in_chunks, default=plain)
    return values, ids


def _plain_top_k(x: jax.Array, k: int) -> list[jax.Array]:
    return list(lax.top_k(x, k))


def _top_k_in_chunks(x: jax.Array, k: int) -> list[jax.Array]:
    """Two short searches for a long one: the k largest lie in the k chunks with the largest maxima."""
    size = x.shape[-1]
    # Both searches look at about sqrt(size * k) elements when chunks hold sqrt(size / k).
    chunk = next((c for c in range(math.isqrt(max(size // k, 1)), 1, -1) if size % c == 0), 1)
    if chunk == 1:
        return _plain_top_k(x, k)
    chunks = x.reshape(*x.shape[:-1], size // chunk, chunk)
    _, chosen = lax.top_k(jnp.max(chunks, axis=-1), k)
    kept = take(chunks, chosen[..., None], axis=-2)
    values, inside = lax.top_k(kept.reshape(*x.shape[:-1], k * chunk), k)
    ids = chosen[..., None] * chunk + lax.broadcasted_iota(chosen.dtype, kept.shape, kept.ndim - 1)
    return [values, take(ids.reshape(*x.shape[:-1], k * chunk), inside)]


MOST_KEPT = 1024
"""Tokens of a `Compressed`: comparing two of them takes the square of it."""


class Compressed(NamedTuple):
    """A distribution's K most likely tokens, and one floor for all others."""

    ids: jax.Array  # [..., K] int32
    log_p: jax.Array  # [..., K] float32
    floor: jax.Array  # [...] float32: the log-probability of any token not among `ids`

    @classmethod
    def none(cls, shape: tuple[int, ...], k: int) -> Compressed:
        """What is kept before there is anything, at places of this shape."""
        ids = jnp.full((*shape, k), -1, jnp.int32)
        return cls(ids, jnp.zeros(ids.shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def compress(logits: jax.Array, summary: Summary, k: int) -> Compressed:
    """Keeps the top k of logits [B, W, V]; the tail's mass is spread evenly, and is at least 1e-12.

    Of a vocabulary of fewer than k tokens the rest has the id -1, which is no token's, and no probability.
    """
    size, spare = logits.shape[-1], max(k - logits.shape[-1], 0)
    values, ids = top_k(logits, k - spare)
    rows, columns = jnp.arange(ids.shape[0])[:, None, None], jnp.arange(ids.shape[1])[None, :, None]
    others = logits.at[rows, columns, ids].set(-jnp.inf, unique_indices=True)
    tail = jnp.sum(jnp.exp(others - summary.peak[..., None]), axis=-1)
    tail = jnp.maximum(tail / (1.0 + summary.rest), 1e-12)
    log_p = (values - summary.peak[..., None]) - jnp.log1p(summary.rest)[..., None]
    grow = ((0, 0), (0, 0), (0, spare))
    ids = jnp.pad(ids, grow, constant_values=-1)
    log_p = jnp.pad(jnp.maximum(log_p, _LOG_ZERO), grow, constant_values=_LOG_ZERO)
    return Compressed(ids, log_p, jnp.log(tail) - math.log(max(size - k, 1)))


def kl_divergence(current: Compressed, previous: Compressed) -> jax.Array:
    """KL(current || previous) over the current top K [...]: I_k, the paper's last-block influence.

    A token that `previous` did not keep has its floor there. What rounding alone may amount to is 0: two
    passes over the same tokens, of other widths, are the same distribution.
    """
    same = current.ids[..., :, None] == previous.ids[..., None, :]  # [..., K, K]
    kept = jnp.max(jnp.where(same, previous.log_p[..., None, :], -jnp.inf), axis=-1)
    log_q = jnp.where(jnp.any(same, axis=-1), kept, previous.floor[..., None])
    p = jnp.exp(current.log_p)
    divergence = jnp.sum(jnp.where(p > 0, p * (current.log_p - log_q), 0.0), axis=-1)
    terms = jnp.sum(jnp.where(p > 0, p * -(current.log_p + log_q), 0.0), axis=-1)
    return jnp.where(jnp.abs(divergence) <= _ROUNDING * terms, 0.0, divergence)


class Exact(NamedTuple):
    """A sum of float32 numbers to about twice their precision: `high` rounded, `low` what rounding lost."""

    high: jax.Array
    low: jax.Array


def smooth(x: jax.Array, width: jax.Array) -> Exact:
    """Centred sums of 3 over x [B, W], with zeros before 0 and from `width` [B] on.

    Neighbouring sums share two terms and may differ by a third that is far smaller. float64 sees that
    difference, and the sign of S hangs on it; so these sums are exact. (The mean's factor of 1/3 would
    cancel in `robust_scale`.)
    """
    x = jnp.where(jnp.arange(x.shape[-1], dtype=jnp.int32)[None] < width[:, None], x, 0.0)
    padded = jnp.pad(x, ((0, 0), (1, 1)))
    pair, lost = _two_sum(padded[:, :-2], x)
    total, lost_too = _two_sum(pair, padded[:, 2:])
    return Exact(*_two_sum(total, lost + lost_too))


def robust_scale(x: Exact, width: jax.Array) -> jax.Array:
    """(x - median) / (q3 - q1) over the first `width` [B] entries of x [B, W]; all three are elements."""
    inside = jnp.arange(x.high.shape[-1], dtype=jnp.int32)[None] < width[:, None]
    ordered = Exact(*lax.sort((jnp.where(inside, x.high, jnp.inf), x.low), num_keys=2))
    last = jnp.maximum(width, 1)[:, None] - 1

    def element(index: jax.Array) -> Exact:
        return Exact(*(take(part, index) for part in ordered))

    median, q1, q3 = element(last // 2), element(last // 4), element(3 * last // 4)
    # The floor is that of means; these are sums of three.
    return _difference(x, median) / jnp.maximum(_difference(q3, q1), 3e-15)


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a + b rounded, and exactly what the rounding lost (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _difference(a: Exact, b: Exact) -> jax.Array:
    return (a.high - b.high) + (a.low - b.low)
