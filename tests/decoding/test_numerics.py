"""The float32 forms against float64 NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

from depcap_jax.decoding.compute import numerics

KINDS = ("flat", "peaked", "tied", "minus_inf", "huge", "extreme")
SUMMARISE, ENTROPY, ARGMAX = jax.jit(numerics.summarise), jax.jit(numerics.entropy), jax.jit(numerics.argmax)
KL_DIVERGENCE, SMOOTH = jax.jit(numerics.kl_divergence), jax.jit(numerics.smooth)
ROBUST_SCALE, TOP_K = jax.jit(numerics.robust_scale), jax.jit(numerics.top_k, static_argnums=1)
COMPRESS = jax.jit(lambda x, k: numerics.compress(x, numerics.summarise(x), k), static_argnums=1)
VOCABULARY = 192  # not a power of two, and larger than the top 64


def logits_of(kind: str, seed: int, rows: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, VOCABULARY)).astype(np.float32)
    if kind == "flat":
        return x * 1e-3
    if kind == "peaked":
        x[:, rng.integers(VOCABULARY)] += rng.uniform(10, 90)
    if kind == "tied":
        return np.round(x * 2).astype(np.float32)
    if kind == "minus_inf":
        x[rng.random(x.shape) < 0.8] = -np.inf
        x[:, 3] = 1.0
    if kind == "huge":
        return x * 1e4
    if kind == "extreme":
        return x * 1e37
    return x


def log_softmax64(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities to float64's full precision, those next to 0 included."""
    z = logits.astype(np.longdouble)
    z = z - z.max(axis=-1, keepdims=True)
    others = np.arange(z.shape[-1]) != z.argmax(axis=-1)[:, None]
    rest = np.where(others, np.exp(z), 0).sum(axis=-1, keepdims=True)
    return (z - np.log1p(rest)).astype(np.float64)


def compress(logits: np.ndarray, k: int) -> numerics.Compressed:
    """Each row a window of one."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], COMPRESS(logits[:, None], k))


cases = given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1))


@settings(max_examples=60, deadline=None)
@cases
def test_summary_and_log_confidence(kind, seed):
    x = logits_of(kind, seed)
    summary = SUMMARISE(jnp.asarray(x))
    best = log_softmax64(x).max(axis=-1)
    ours = np.asarray(summary.log_confidence(jnp.asarray(x.max(axis=-1))), np.float64)
    # Relative to the log itself: 1 - 1e-12 is not 1.
    np.testing.assert_allclose(ours, best, rtol=1e-5, atol=2.0**-52)


def test_log_confidence_tells_what_float64_tells_and_no_more():
    x = np.zeros((3, 8), np.float32)
    x[:, 0] = [30.0, 34.0, 60.0]  # the rest weighs 6.5e-13, 1.2e-14 and 6e-26
    x = jnp.asarray(x)
    log_c = SUMMARISE(x).log_confidence(x[:, 0])
    assert log_c[0] < log_c[1] < log_c[2] == 0


@settings(max_examples=60, deadline=None)
@cases
def test_entropy(kind, seed):
    x = logits_of(kind, seed)
    log_p = log_softmax64(x)
    expected = -(np.exp(log_p) * np.where(log_p > -1e30, log_p, 0.0)).sum(axis=-1)
    ours = ENTROPY(jnp.asarray(x), SUMMARISE(jnp.asarray(x)))
    np.testing.assert_allclose(np.asarray(ours, np.float64), expected, rtol=2e-5, atol=1e-30)


@settings(max_examples=60, deadline=None)
@cases
def test_argmax_is_the_first_maximum(kind, seed):
    x = logits_of(kind, seed)
    np.testing.assert_array_equal(ARGMAX(jnp.asarray(x)), x.argmax(axis=-1))


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32 - 1), k=st.sampled_from([1, 3, 16, 64, 192]))
def test_top_k_and_tail(kind, seed, k):
    x = logits_of(kind, seed)
    values, ids = TOP_K(jnp.asarray(x), k)
    np.testing.assert_array_equal(values, -np.sort(-x, axis=-1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(x, np.asarray(ids), axis=-1), values)
    assert all(len(set(row)) == k for row in np.asarray(ids).tolist())

    kept = compress(x, k)
    log_p = log_softmax64(x)
    order = np.argsort(-log_p, axis=-1, kind="stable")
    tail = np.exp(np.take_along_axis(log_p, order[:, k:], axis=-1)).sum(axis=-1)
    floor = np.log(np.maximum(tail, 1e-12)) - np.log(max(VOCABULARY - k, 1))
    np.testing.assert_allclose(np.asarray(kept.floor, np.float64), floor, rtol=1e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.tuples(st.sampled_from(KINDS[:4]), st.sampled_from(KINDS[:4])),
    seed=st.integers(0, 2**31),
    k=st.sampled_from([1, 16, 64]),
)
def test_kl_divergence(kinds, seed, k):
    x, y = logits_of(kinds[0], seed), logits_of(kinds[1], seed + 1)
    current, previous = compress(x, k), compress(y, k)
    expected = []
    for row in range(len(x)):
        log_p = log_softmax64(x)[row]
        before = dict(zip(previous.ids[row].tolist(), previous.log_p[row].astype(np.float64), strict=True))
        total = 0.0
        for v in current.ids[row].tolist():
            if log_p[v] > -np.inf:
                total += np.exp(log_p[v]) * (log_p[v] - before.get(v, float(previous.floor[row])))
        expected.append(total)
    ours = np.asarray(KL_DIVERGENCE(current, previous), np.float64)
    finite = np.abs(expected) < 1e20  # where the previous top K held an impossible token, both are vast
    np.testing.assert_allclose(ours[finite], np.array(expected)[finite], rtol=2e-4, atol=2e-6)
    assert np.all(np.isfinite(ours))


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(KINDS[:4]), seed=st.integers(0, 2**31), k=st.sampled_from([16, 64]))
def test_rounding_is_no_influence(kind, seed, k):
    """Logits of the same tokens from passes of two widths differ by rounding: exactly nothing diverges."""
    x = logits_of(kind, seed)
    rounding = 1 + 2.0**-23 * np.random.default_rng(seed).integers(-1, 2, x.shape)
    current, previous = compress((x * rounding).astype(np.float32), k), compress(x, k)
    same = np.array(
        [set(a) == set(b) for a, b in zip(*map(np.asarray, (current.ids, previous.ids)), strict=True)]
    )
    assert not np.asarray(KL_DIVERGENCE(current, previous))[same].any()


@settings(max_examples=80, deadline=None)
@given(width=st.integers(1, 128), seed=st.integers(0, 2**31), spread=st.sampled_from([1e-12, 1.0, 1e6]))
def test_smoothing_and_robust_scaling(width, seed, spread):
    rng = np.random.default_rng(seed)
    x = np.full((2, 128), 1e9, np.float32)  # what lies beyond the window must not matter
    x[:, :width] = (rng.lognormal(size=(2, width)) * spread).astype(np.float32)
    window = jnp.full(2, width)
    sums = SMOOTH(jnp.asarray(x), window)
    padded = np.pad(x[:, :width].astype(np.float64), ((0, 0), (1, 1)))
    means = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
    ours = (np.asarray(sums.high, np.float64) + np.asarray(sums.low, np.float64))[:, :width] / 3
    np.testing.assert_allclose(ours, means, rtol=1e-13)

    scaled = np.asarray(ROBUST_SCALE(sums, window), np.float64)[:, :width]
    ordered, last = np.sort(means, axis=-1), width - 1
    median, q1, q3 = (ordered[:, [i]] for i in (last // 2, last // 4, 3 * last // 4))
    expected = (means - median) / np.maximum(q3 - q1, 1e-15)
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)


def test_a_tiny_third_term_decides():
    """Two sums that share their large terms: float32 means would be equal."""
    x = jnp.array([[2.6e-4, 0.164, 1e-10, 2.8e-4, 4e-3, 0.3]])
    window = jnp.array([6])
    sums = SMOOTH(x, window)
    assert sums.high[0, 0] == sums.high[0, 1]
    scaled = ROBUST_SCALE(sums, window)
    assert scaled[0, 0] < 0 == scaled[0, 1]  # the second is the median
