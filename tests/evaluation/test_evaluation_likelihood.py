from __future__ import annotations

import itertools
from pathlib import Path

import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest

from depcap_jax.checkpoints.loading import load
from depcap_jax.decoding.generate import generate
from depcap_jax.decoding.recipes import recipe
from depcap_jax.evaluation.harness.likelihood import Pair, are_greedy, log_likelihoods

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(params=["llada", "dream"])
def model(request):
    return load(GOLDEN / request.param)[0]


def plain_sum(model, pair: Pair, hidden: tuple[int, ...]) -> float:
    """The summed log-probabilities of the target's tokens `hidden`, by one unpadded forward pass."""
    ids = np.asarray([*pair.prefix, *pair.target])
    where = np.asarray(hidden) + len(pair.prefix)
    noisy = ids.copy()
    noisy[where] = model.config.mask_token_id
    states, _ = model.hidden(jnp.asarray(noisy[None]), valid=jnp.ones((1, len(ids)), bool))
    logits = np.asarray(model.logits(states))[0].astype(np.float64)
    log_probabilities = logits - np.asarray(jax.scipy.special.logsumexp(logits, axis=-1, keepdims=True))
    source = np.maximum(where - int(model.config.predicts_next), 0)
    return float(log_probabilities[source, ids[where]].sum())


def test_one_token_is_exact(model):
    pairs = [Pair((5, 6, 7), (8,)), Pair((), (9,))]
    for pair, found in zip(pairs, log_likelihoods(model, pairs, batch_size=2), strict=True):
        assert found.value == pytest.approx(plain_sum(model, pair, (0,)), abs=1e-4)
        assert found.standard_error == 0


def test_the_mean_is_right(model):
    pair = Pair((5, 6), (7, 300, 9))
    length = len(pair.target)
    by_count = [
        np.mean([plain_sum(model, pair, hidden) for hidden in itertools.combinations(range(length), count)])
        * length
        / count
        for count in range(1, length + 1)
    ]
    (found,) = log_likelihoods(model, [pair], samples=300, batch_size=50)
    assert found.standard_error > 0
    assert abs(found.value - np.mean(by_count)) < 4 * found.standard_error


@pytest.mark.parametrize("samples", [16, 64])
def test_the_standard_error_is_that_of_repeated_estimates(samples):
    """Over seeds, estimates spread as much as each of them says, within what 60 of them can tell."""
    model = load(GOLDEN / "llada")[0]
    pair = Pair((5, 6), tuple(range(7, 19)))
    found = [
        log_likelihoods(model, [pair], samples=samples, batch_size=64, seed=seed)[0] for seed in range(60)
    ]
    spread = np.std([estimate.value for estimate in found], ddof=1)
    said = np.sqrt(np.mean([estimate.standard_error**2 for estimate in found]))
    assert 0.65 < said / spread < 1.5


def test_one_sample_does_not_know_its_error():
    (found,) = log_likelihoods(load(GOLDEN / "llada")[0], [Pair((5, 6), (7, 8, 9))], samples=1, batch_size=1)
    assert np.isnan(found.standard_error)


def test_an_estimate_is_its_own(model):
    pairs = [Pair((5, 6), (7, 8, 9)), Pair(tuple(range(40)), tuple(range(20))), Pair((1,), (2, 3))]
    together = log_likelihoods(model, pairs, samples=6, batch_size=4)
    for pair, found in zip(pairs, together, strict=True):
        (alone,) = log_likelihoods(model, [pair], samples=6, batch_size=3)
        assert alone.value == pytest.approx(found.value, abs=1e-3)
    (other,) = log_likelihoods(model, pairs[:1], samples=6, batch_size=3, seed=1)
    assert other.value != pytest.approx(together[0].value, abs=1e-3)


def test_greedy(model):
    config = recipe("vanilla", block_length=8, gen_length=8, stop_at_eos=False)
    written = np.asarray(generate(model, np.array([[5, 6, 7]]), config=config).tokens)[0].tolist()
    other = [*written[:-1], (written[-1] + 1) % 500]
    pairs = [Pair((5, 6, 7), tuple(target)) for target in (other, written)]
    assert are_greedy(model, pairs, batch_size=2) == [False, True]


def test_errors():
    model = load(GOLDEN / "llada")[0]
    with pytest.raises(ValueError, match="pair 1 has an empty target"):
        log_likelihoods(model, [Pair((1,), (2,)), Pair((1,), ())])
    with pytest.raises(ValueError, match="pair 0 has 1025 tokens; the model's context has 1024"):
        log_likelihoods(model, [Pair((1,) * 1024, (2,))])
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1, got 0"):
        log_likelihoods(model, [], samples=0)
