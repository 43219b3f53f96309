"""Attention weights beside the pass, against the transformer once more in NumPy and float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.models.parameters import get_leaves, with_leaves

LENGTHS = np.array([11, 7])
IDS = np.random.default_rng(1).integers(0, 500, (2, 11))
WATCHED = np.array([[0, 3, 4], [6, 2, 2]])

looking = jax.jit(
    lambda model, *args, layers, **rest: model.hidden_and_attention(*args, layers, **rest),
    static_argnames="layers",
)
hidden = jax.jit(lambda model, ids, **rest: model.hidden(ids, **rest))


def by_hand(model: dc.Transformer, ids: np.ndarray) -> np.ndarray:
    """The weights [layers, A, T, T] of one row, all of whose positions count."""
    c, leaf = model.config, {name: np.asarray(x, np.float64) for name, x in get_leaves(model).items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + c.norm_eps) * leaf[name]

    def heads(x: np.ndarray, name: str, count: int, rotated: bool) -> np.ndarray:
        y = x @ leaf[f"{name}.kernel"] + leaf.get(f"{name}.bias", 0.0)
        y = y.reshape(len(x), count, c.head_dim)
        if rotated:
            half = c.head_dim // 2
            turn = np.arange(len(x))[:, None] / c.rope_theta ** (np.arange(half) / half)
            pairs = (y[..., :half] + 1j * y[..., half:]) * np.exp(1j * turn)[:, None]
            y = np.concatenate([pairs.real, pairs.imag], axis=-1)
        return np.repeat(y, c.num_heads // count, axis=1).transpose(1, 0, 2)

    x, weights = leaf["embed"][ids], []
    for i in range(c.num_layers):
        normed, attn, ff = norm(x, f"layers.{i}.attn_norm.scale"), f"layers.{i}.attn", f"layers.{i}.ff"
        q = heads(normed, f"{attn}.q", c.num_heads, True)
        k, v = (heads(normed, f"{attn}.{n}", c.num_kv_heads, n == "k") for n in "kv")
        p = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(c.head_dim))
        weights.append(p / p.sum(axis=-1, keepdims=True))
        x = x + (weights[-1] @ v).transpose(1, 0, 2).reshape(len(x), -1) @ leaf[f"{attn}.o.kernel"]
        normed = norm(x, f"layers.{i}.ff_norm.scale")
        gate = normed @ leaf[f"{ff}.gate.kernel"]
        inner = gate / (1 + np.exp(-gate)) * (normed @ leaf[f"{ff}.up.kernel"])
        x = x + inner @ leaf[f"{ff}.down.kernel"]
    np.testing.assert_allclose(
        norm(x, "norm.scale"), hidden(model, ids[None])[0][0], atol=2e-4, err_msg="the rest of it"
    )
    return np.stack(weights)


def expected(model: dc.Transformer, layers: int) -> np.ndarray:
    """What is told of `WATCHED` [2, 3, 11]."""
    told = np.zeros((2, 3, 11))
    for row, length in enumerate(LENGTHS):
        weights = by_hand(model, IDS[row, :length])[-layers:].mean(axis=(0, 1))
        told[row, :, :length] = weights[WATCHED[row]]
    return told


@pytest.mark.parametrize("layers", [1, 2, 9])
def test_they_are_the_softmax_of_the_scores(family, layers):
    model = small_model(family, 3)
    states, _, told = looking(model, IDS, WATCHED, layers=layers, lengths=LENGTHS)
    assert told.dtype == jnp.float32
    np.testing.assert_allclose(told, expected(model, layers), atol=1e-5)
    np.testing.assert_allclose(told.sum(axis=-1), 1, atol=1e-5)
    assert not told[1, :, 7:].any(), "padding has none"
    plain = hidden(model, IDS, lengths=LENGTHS)[0]
    np.testing.assert_allclose(states, plain, atol=1e-5)


def test_scanned_layers_tell_the_same(family):
    model = small_model(family, 3)
    cache = dc.stack_layers(model).init_cache(*IDS.shape)
    told = looking(dc.stack_layers(model), IDS, WATCHED, layers=2, lengths=LENGTHS, cache=cache)[2]
    np.testing.assert_allclose(told, expected(model, 2), atol=1e-5)


def test_a_cached_pass_tells_of_its_queries_and_all_keys(family):
    """The queries are those of a span; keys outside of it are the cache's."""
    model = small_model(family, 3)
    _, cache = hidden(model, IDS, lengths=LENGTHS, cache=model.init_cache(*IDS.shape))
    start = np.array([1, 2])
    span = np.take_along_axis(IDS, start[:, None] + np.arange(5), axis=1)
    watched = np.array([[0, 4], [3, 1]])
    told = looking(model, span, watched, layers=2, lengths=LENGTHS, start=start, cache=cache)[2]
    for row, length in enumerate(LENGTHS):
        weights = by_hand(model, IDS[row, :length])[-2:].mean(axis=(0, 1))
        np.testing.assert_allclose(told[row, :, :length], weights[start[row] + watched[row]], atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_half_precision_they_are_near(dtype):
    model = small_model("dream", 2)
    leaves: dict[str, Any] = {name: x.astype(dtype) for name, x in get_leaves(model).items()}
    half = with_leaves(dataclasses.replace(model.config), leaves)
    told = looking(half, IDS, WATCHED, layers=2, lengths=LENGTHS)[2]
    assert told.dtype == jnp.float32
    np.testing.assert_allclose(told.sum(axis=-1), 1, atol=1e-5)
    assert np.abs(np.asarray(told) - expected(model, 2)).mean() < 0.01


def test_no_layers_are_no_number_of_layers():
    with pytest.raises(ValueError, match="layers must be an integer of at least 1, got 0"):
        small_model("llada").hidden_and_attention(jnp.asarray(IDS), jnp.asarray(WATCHED), 0)
