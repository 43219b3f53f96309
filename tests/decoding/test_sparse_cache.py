"""A cache that is pruned: against the same in NumPy, row by row, and in its limits."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from predictions import log_softmax
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.reference import decode_eagerly

LENGTHS = np.array([5, 23, 12])
IDS = np.random.default_rng(7).integers(0, 500, (len(LENGTHS), 24)).astype(np.int32)
GEN_LENGTH, BLOCK = 28, 8
FIELDS = ("tokens", "nfe", "commit_step", "block_sizes")
in_ci = pytest.mark.compiler
two_layers = functools.partial(small_model, num_layers=2)


def config_of(cache: dc.Cache) -> dc.DecodeConfig:
    settings: dict[str, Any] = {"gen_length": GEN_LENGTH, "stop_at_eos": False, "threshold": 0.3}
    return dc.confidence(block_length=BLOCK, cache=cache, **settings)


class ByHand:
    """A model of two layers in NumPy, with a cache of chosen positions."""

    def __init__(self, model: dc.Transformer, keep: float):
        self.model, self.config, self.keep = model, model.config, keep
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []  # of each layer: keys and values

    def logits(self, tokens: np.ndarray, block: range, full: bool) -> np.ndarray:
        """Log-probabilities that predict the block; a full pass also prunes."""
        first = max(block.start - int(self.config.predicts_next), 0)
        position = np.arange(len(tokens)) if full else np.arange(first, block.stop)
        x, kept = np.asarray(self.model.embed)[tokens[position]], []
        in_block = (position >= block.start) & (position < block.stop)
        for number, layer in enumerate(cast(Any, self.model.layers)):
            h = self._norm(x, layer.attn_norm)
            q, k, v = (
                self._heads(h @ self._of(p.kernel)) for p in (layer.attn.q, layer.attn.k, layer.attn.v)
            )
            q, k = self._rotate(q, position), self._rotate(k, position)
            if full:
                seen = k, v
                best = self._most_wanted(q[in_block], k, block)
                kept.append((k[best], v[best]))
            else:
                fresh = k[in_block], v[in_block]
                seen = tuple(map(np.concatenate, zip(self.kept[number], fresh, strict=True)))
            x = x + self._attend(q, *seen) @ self._of(layer.attn.o.kernel)
            h = self._norm(x, layer.ff_norm)
            gate, up = h @ self._of(layer.ff.gate.kernel), h @ self._of(layer.ff.up.kernel)
            x = x + gate / (1 + np.exp(-gate)) * up @ self._of(layer.ff.down.kernel)
        self.kept = kept if full else self.kept
        source = np.asarray(self.model.source(jnp.arange(block.start, block.stop))) - position[0]
        return log_softmax(self._norm(x, self.model.norm)[source] @ self._of(self.model.head))

    def _most_wanted(self, q: np.ndarray, k: np.ndarray, block: range) -> list[int]:
        mean = q.mean(axis=0)  # [A, H]
        heads = np.repeat(k, len(mean) // k.shape[1], axis=1)
        score = np.array([np.mean([a @ b for a, b in zip(mean, key, strict=True)]) for key in heads])
        outside = [i for i in range(len(k)) if i not in block]
        pooled = {i: max(score[j] for j in (i - 1, i, i + 1) if j in outside) for i in outside}
        return sorted(outside, key=lambda i: -pooled[i])[: int(self.keep * len(outside))]

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        score = np.einsum("qah,tah->aqt", q, k) / np.sqrt(q.shape[-1])
        weights = np.exp(log_softmax(score))
        return np.einsum("aqt,tah->qah", weights, v).reshape(len(q), -1)

    def _rotate(self, x: np.ndarray, position: np.ndarray) -> np.ndarray:
        size = x.shape[-1]
        angle = position[:, None] / self.config.rope_theta ** (np.arange(0, size, 2) / size)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _norm(self, x: np.ndarray, norm: Any) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + norm.eps) * np.asarray(norm.scale)

    def _heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), -1, self.config.head_dim)

    @staticmethod
    def _of(kernel: Any) -> np.ndarray:
        return np.asarray(kernel, np.float64)


def decode_by_hand(model: dc.Transformer, prompt: np.ndarray, keep: float, full_passes: int) -> tuple:
    mask, start = model.config.mask_token_id, len(prompt)
    tokens, steps = np.concatenate([prompt, np.full(GEN_LENGTH, mask)]), np.zeros(start + GEN_LENGTH, int)
    net, nfe = ByHand(model, keep), 0
    for t in range(start, len(tokens), BLOCK):
        block, passes = range(t, min(t + BLOCK, len(tokens))), 0
        while not steps[t : block.stop].all():
            log_p = net.logits(tokens, block, full=passes < full_passes)
            log_p[:, mask] = -np.inf
            nfe, passes, best = nfe + 1, passes + 1, log_p.max(axis=-1)
            still_open = steps[t : block.stop] == 0
            take = still_open & ((best >= np.log(0.3)) | (best == best[still_open].max()))
            tokens[t : block.stop][take] = log_p.argmax(axis=-1)[take]
            steps[t : block.stop][take] = nfe
    return tokens[start:].tolist(), steps[start:].tolist(), nfe


def row_of(result: dc.DecodeResult, row: int) -> tuple:
    return result.tokens[row].tolist(), result.commit_step[row].tolist(), int(result.nfe[row])


@pytest.mark.parametrize(
    ("family", "keep", "full_passes"),
    [
        ("llada", 0.5, 2),
        pytest.param("llada", 0.25, 1, marks=in_ci),
        pytest.param("dream", 0.5, 1, marks=in_ci),
        pytest.param("dream", 0.3, 2, marks=in_ci),
    ],
)
def test_each_row_of_a_batch_is_decoded_as_by_hand_alone(family, keep, full_passes):
    cache = dc.SparseCache(keep=keep, full_passes=full_passes, window=16, together=1)
    result = dc.generate(two_layers(family), IDS, LENGTHS, config=config_of(cache))
    for row, length in enumerate(LENGTHS):
        expected = decode_by_hand(two_layers(family), IDS[row, :length], keep, full_passes)
        assert row_of(result, row) == expected
    dual = dc.generate(two_layers(family), IDS, LENGTHS, config=config_of(dc.DualCache()))
    assert not np.array_equal(dual.tokens, result.tokens), "pruning is to matter here"


@in_ci
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_keeping_everything_is_the_dual_cache(family):
    """Also where the blocks' lengths are chosen, and whatever runs at once."""
    settings: dict[str, Any] = {"l_min": 4, "l_max": 16, "lambda_u": 0.6, "tau_low": 0.3, "gamma": -8.0}
    config = dc.depcap(gen_length=40, stop_at_eos=False, cache=dc.DualCache(), **settings)
    model = two_layers(family)
    dual = dc.generate(model, IDS, LENGTHS, config=config)
    sparse = dataclasses.replace(config, cache=dc.SparseCache(keep=1.0, full_passes=1, together=64))
    result = dc.generate(model, IDS, LENGTHS, config=sparse, trace=True)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(result, field), getattr(dual, field))
    for row, length in enumerate(LENGTHS):
        seen = dc.replay(result, row)
        first = {block.first_pass for block in seen.blocks}
        for step in range(1, seen.nfe + 1):
            facts, block = seen.facts(step), seen.block_at(step)
            assert facts["refresh"] == (step in first)
            assert facts["needed"] == (length + 40 if step in first else block.size)
            assert facts["width"] <= (64 if step in first else 16 + (family == "dream"))


@pytest.mark.compiler
def test_layers_under_a_scan_and_another_bucket(family):
    config = config_of(dc.SparseCache(window=BLOCK))
    expected = dc.generate(two_layers(family), IDS, LENGTHS, config=config)
    wider = np.pad(IDS, ((0, 0), (0, 17)))
    result = dc.generate(dc.stack_layers(two_layers(family)), wider, LENGTHS, config=config)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(result, field), getattr(expected, field))


def test_it_holds_what_it_keeps_and_no_more():
    memory = dc.SparseCache(keep=0.25, window=32).init(two_layers("llada"), 3, 1000)
    per_layer = [layer.slots.k.shape for layer in memory.kv]
    assert per_layer == [(3, 1, 16, 250 + 32)] * 2


def test_what_does_not_go_together_is_named():
    model = two_layers("llada")
    with pytest.raises(ValueError, match=r"at least the longest block, 8, got 4: SparseCache\(window=8\)"):
        dc.generate(model, IDS, LENGTHS, config=config_of(dc.SparseCache(window=4)))
    with pytest.raises(ValueError, match=r"keep must be a number in \[0, 1\], got 1.5"):
        dc.SparseCache(keep=1.5)
    with pytest.raises(TypeError, match="does not know the cache SparseCache"):
        decode_eagerly(model, [1, 2], config_of(dc.SparseCache()))
    other: Any = object()
    with pytest.raises(ValueError, match=r"needs a model with init_sparse_cache.*object has none"):
        dc.SparseCache().init(other, 1, 32)
