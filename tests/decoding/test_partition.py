"""How far a block reaches."""

from __future__ import annotations

import dataclasses

import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from predictions import log_softmax, prediction_of
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.reference import _block_length

VOCABULARY = 96
ASK = jax.jit(lambda rule, *arguments: rule(*arguments))


def random_logits(seed: int, rows: int, width: int, sharp: float = 4.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.2, sharp, (rows, width, 1))
    return (rng.normal(size=(rows, width, VOCABULARY)) * scale).astype(np.float32)


@pytest.mark.parametrize("remaining", [1, 2, 3, 7, 16, 31, 64])
def test_depga_against_the_eager_twin(remaining):
    """Two block starts, 4 positions apart, on unrelated distributions."""
    rows, rule = 40, dc.DepGABlocks(l_min=1, l_max=16, top_k_cache=8, lambda_u=0.8)
    config = dc.DecodeConfig(partition=rule, gen_length=68)
    before, after = random_logits(1, rows, 32), random_logits(2, rows, 32)
    start = jnp.full(rows, 10)
    first, memory, _ = ASK(
        rule, prediction_of(before, rule.reads), start, jnp.full(rows, remaining + 4), rule.init(rows, 68)
    )
    assert first.tolist() == [1] * rows
    length, _, _ = ASK(rule, prediction_of(after, rule.reads), start + 4, jnp.full(rows, remaining), memory)
    for row in range(rows):
        log_p = [log_softmax(x[row]) for x in (before, after)]
        token = log_p[1].argmax(axis=-1)
        _, remembered = _block_length(config, log_p[0][: remaining + 4], token, np.exp(log_p[0]), 10, None)
        now = np.resize(log_p[1], (max(remaining, 32), VOCABULARY))[:remaining]
        remembered = {**dict.fromkeys(range(200), remembered[10]), **remembered}
        expected, _ = _block_length(config, now, token, np.exp(now), 14, remembered)
        assert int(length[row]) == expected, row


def test_equal_sums_of_a_window_of_two_stay_equal():
    """Both positions smooth to the same sum, S is 0 at both, and neither ends the block."""
    rows, rule = 200, dc.DepGABlocks(l_min=1, l_max=16, top_k_cache=8)
    start = jnp.zeros(rows, jnp.int32)
    before, after = (prediction_of(random_logits(seed, rows, 32), rule.reads) for seed in (3, 4))
    _, memory, _ = ASK(rule, before, start, start + 6, rule.init(rows, 32))
    length, _, _ = ASK(rule, after, start + 4, start + 2, memory)
    assert length.tolist() == [2] * rows


def test_adablock_ends_with_the_most_confident_delimiter():
    logits = np.zeros((3, 12, VOCABULARY), np.float32)
    logits[:, :, 7] = 2.0
    for row, where, strength in [(0, 4, 6.0), (0, 8, 9.0), (1, 4, 6.0), (1, 11, 9.0), (2, 3, 2.5)]:
        logits[row, where, 5] = strength
    rule = dc.AdaBlocks(delimiter_ids=(5, 6), default_block_length=10, delimiter_threshold=0.5)
    # Row 1 has 9 positions left, so its delimiter at 11 does not count; row 2's is not trusted.
    start = jnp.zeros(3, jnp.int32)
    length, _, _ = ASK(rule, prediction_of(logits), start, jnp.array([12, 9, 12], jnp.int32), None)
    assert length.tolist() == [9, 5, 10]
    trusting = dataclasses.replace(rule, delimiter_threshold=0.0)
    length, _, _ = ASK(trusting, prediction_of(logits), start, jnp.array([12, 3, 3], jnp.int32), None)
    assert length.tolist() == [9, 3, 3]


def test_a_certain_tail_does_not_split_with_a_certainty_floor():
    """Where all is certain, S is noise: the paper's rule cuts blocks of l_min, the floor does not."""
    model = golden_runs.model("llada")
    certain = jax.tree.map(lambda leaf: leaf, model)
    certain.head[...] = 40 * certain.head[...]  # every distribution is all but a point
    ids = np.random.default_rng(2).integers(0, 500, (1, 12))
    sizes = {"gen_length": 64, "l_min": 2, "l_max": 32, "stop_at_eos": False}

    def blocks(model, **settings) -> list[int]:
        result = dc.generate(model, ids, config=dc.recipe("depcap", **sizes, **settings))
        return [int(size) for size in result.block_sizes[0] if size]

    paper, floored = blocks(certain), blocks(certain, certainty_floor=0.2)
    assert paper.count(2) > 3
    assert floored.count(2) == 1, "only the first block, which is always short"
    assert len(floored) < len(paper) / 2
    # At 0 it is the paper's rule; where nothing is certain, a small floor changes nothing.
    assert blocks(certain, certainty_floor=0.0) == paper
    assert blocks(model, certainty_floor=1e-9) == blocks(model)


@pytest.mark.compiler
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_every_partition_goes_with_every_selection_and_cache(shift):
    """A Latin square of families, partitions, selections and caches; blocks tile the answer."""
    partitions = [
        dc.FixedBlocks(block_length=8),
        dc.AdaBlocks(delimiter_ids=tuple(range(0, 500, 9)), default_block_length=6),
        dc.DepGABlocks(l_min=2, l_max=8),
    ]
    selections = [dc.TopOne(), dc.ConfidenceThreshold(), dc.FactorThreshold(), dc.ConflictFree()]
    caches = [dc.NoCache(), dc.PrefixCache(), dc.DualCache()]
    for i, partition in enumerate(partitions):
        select, cache = selections[(i + shift) % 4], caches[(2 * i + shift) % 3]
        config = dc.DecodeConfig(
            partition=partition, select=select, cache=cache, gen_length=20, stop_at_eos=False
        )
        model = small_model(("llada", "dream")[(i + shift) % 2])
        result = dc.generate(model, np.array([[3, 1, 4, 1, 5]]), config=config)
        assert int(result.block_sizes.sum()) == 20
        assert (np.asarray(result.commit_step) > 0).all()
        assert int(result.nfe[0]) == int(result.commit_step.max())
