from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from small_models import small_model

from depcap_jax.decoding.generate import generate
from depcap_jax.decoding.recipes import recipe
from depcap_jax.evaluation.harness.likelihood import Pair, are_greedy, log_likelihoods

LLADA = small_model("llada")
ROWS = 8
"""Samples computed together, in most tests the same number: they share a program per shape."""


@pytest.fixture(params=["llada", "dream"])
def model(request):
    return small_model(request.param)


@jax.jit
def plain_log_probabilities(model, ids):
    states, _ = model.hidden(ids)
    return jax.nn.log_softmax(model.logits(states))


def plain_sum(model, pair: Pair, hidden: tuple[int, ...]) -> float:
    """The summed log-probabilities of the target's tokens `hidden`, by one unpadded forward pass."""
    ids = np.asarray([*pair.prefix, *pair.target])
    where = np.asarray(hidden) + len(pair.prefix)
    noisy = ids.copy()
    noisy[where] = model.config.mask_token_id
    log_probabilities = np.asarray(plain_log_probabilities(model, noisy[None]))[0]
    source = np.maximum(where - int(model.config.predicts_next), 0)
    return float(log_probabilities[source, ids[where]].sum())


def test_one_token_is_exact(model):
    pairs = [Pair((5, 6, 7, 300), (8,)), Pair((), (9,))]
    for pair, estimate in zip(pairs, log_likelihoods(model, pairs, batch_size=ROWS), strict=True):
        assert estimate.value == pytest.approx(plain_sum(model, pair, (0,)), abs=1e-4)
        assert estimate.standard_error == 0


def test_the_mean_is_right(model):
    pair = Pair((5, 6), (7, 300, 9))
    length = len(pair.target)
    by_count = [
        np.mean([plain_sum(model, pair, hidden) for hidden in itertools.combinations(range(length), count)])
        * length
        / count
        for count in range(1, length + 1)
    ]
    (estimate,) = log_likelihoods(model, [pair], samples=300, batch_size=ROWS)
    exact = float(np.mean(by_count))
    assert 0 < estimate.standard_error < 0.02 * abs(exact)
    assert abs(estimate.value - exact) < 4 * estimate.standard_error


@pytest.mark.parametrize("samples", [16, 64])
def test_the_standard_error_is_that_of_repeated_estimates(samples):
    """Over seeds, estimates spread as much as each of them says, within what 60 of them can tell."""
    pair = Pair((5, 6), tuple(range(7, 19)))
    estimates = [
        log_likelihoods(LLADA, [pair], samples=samples, batch_size=64, seed=seed)[0] for seed in range(60)
    ]
    spread = np.std([estimate.value for estimate in estimates], ddof=1)
    said = np.sqrt(np.mean([estimate.standard_error**2 for estimate in estimates]))
    assert 0.65 < said / spread < 1.5


def test_one_sample_does_not_know_its_error():
    (estimate,) = log_likelihoods(LLADA, [Pair((5, 6), (7, 8, 9))], samples=1, batch_size=ROWS)
    assert np.isnan(estimate.standard_error)


def test_an_estimate_is_its_own(model):
    pairs = [Pair((5, 6), (7, 8, 9)), Pair(tuple(range(40)), tuple(range(20))), Pair((1,), (2, 3))]
    told: list[tuple[int, int]] = []
    together = log_likelihoods(
        model, pairs, samples=6, batch_size=ROWS, progress=lambda *said: told.append(said)
    )
    assert told == [(6, 18), (14, 18), (18, 18)]
    for pair, estimate in zip(pairs, together, strict=True):
        (alone,) = log_likelihoods(model, [pair], samples=6, batch_size=ROWS)
        assert alone.value == pytest.approx(estimate.value, abs=1e-3)
    (fewer,) = log_likelihoods(model, pairs[:1], samples=6, batch_size=3)
    assert fewer.value == pytest.approx(together[0].value, abs=1e-3)
    (other,) = log_likelihoods(model, pairs[:1], samples=6, batch_size=ROWS, seed=1)
    assert other.value != pytest.approx(together[0].value, abs=1e-3)


def test_greedy(model):
    config = recipe("vanilla", block_length=8, gen_length=8, stop_at_eos=False)
    prompts = np.pad([[5, 6, 7]] * 2, ((0, 0), (0, 21)))
    written = np.asarray(generate(model, prompts, np.array([3, 3]), config=config).tokens)[0].tolist()
    other = [*written[:-1], (written[-1] + 1) % 500]
    pairs = [Pair((5, 6, 7), tuple(target)) for target in (other, written)]
    assert are_greedy(model, pairs, batch_size=2) == [False, True]


def test_errors():
    with pytest.raises(ValueError, match="pair 1 has an empty target"):
        log_likelihoods(LLADA, [Pair((1,), (2,)), Pair((1,), ())])
    with pytest.raises(ValueError, match="pair 0 has 1025 tokens; the model's context has 1024"):
        log_likelihoods(LLADA, [Pair((1,) * 1024, (2,))])
    with pytest.raises(ValueError, match=r"samples must be .* of at least 1, got 0"):
        log_likelihoods(LLADA, [], samples=0)
