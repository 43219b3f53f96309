"""Windows beside the paper's: by hand, and in the loop."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from predictions import log_softmax, prediction_of
from small_models import small_model

import depcap_jax as dc

ASK = jax.jit(lambda rule, *arguments: rule(*arguments))


@pytest.mark.parametrize(
    ("open_", "expected"),
    [
        ([1, 1, 1, 1, 1, 1, 1, 1], 3),
        ([1, 0, 0, 1, 1, 1, 1, 1], 5),  # grown by what was committed inside it
        ([1, 0, 0, 1, 0, 0, 0, 0], 8),  # fewer are left than it may have
    ],
)
def test_a_sliding_window_has_so_many_open_positions(open_, expected):
    prediction = prediction_of(np.zeros((1, 8, 32), np.float32))._replace(open=np.array([open_], bool))
    length, _, _ = ASK(
        dc.SlidingWindow(open_length=3), prediction, np.zeros(1, np.int32), np.array([8], np.int32), None
    )
    assert length.tolist() == [expected]


def test_entropy_blocks_end_before_the_largest_rise():
    logits = np.zeros((2, 9, 32), np.float32)
    logits[:, :, 3] = np.array([[9, 9, 2, 9, 9, 0, 9, 9, 9], [9] * 9])
    log_p = log_softmax(logits)
    rise = np.diff(-(np.exp(log_p) * log_p).sum(axis=-1), axis=1)[0]
    assert np.argmax(rise) == 4, "the larger of both"
    prediction = prediction_of(logits, dc.Reads(entropy=True))
    remaining = np.array([9, 7], np.int32)

    def lengths(**settings) -> list[int]:
        rule = dc.EntropyBlocks(**{"l_min": 1, "l_max": 8, **settings})
        return ASK(rule, prediction, np.zeros(2, np.int32), remaining, None)[0].tolist()

    assert lengths() == [5, 7]
    assert lengths(l_max=4) == [2, 4]
    assert lengths(l_min=6) == [8, 7]
    assert lengths(least_rise=50.0) == [8, 7]


def test_a_window_slides_in_the_loop():
    """Never more than 6 positions open before its end, and rows alone give what they give together."""
    model = small_model("llada")
    prompts, lengths = np.random.default_rng(0).integers(0, 500, (2, 16)), np.array([5, 12])
    config = dc.DecodeConfig(
        partition=dc.SlidingWindow(open_length=6),
        select=dc.ConfidenceThreshold(threshold=0.002),
        gen_length=24,
        stop_at_eos=False,
    )
    result = dc.generate(model, prompts, lengths, config=config, trace=True)
    steps, trace = np.asarray(result.commit_step), result.trace
    assert len(set(steps[0])) < 24, "some passes are to commit several"
    for row in range(2):
        for now in range(1, int(result.nfe[row]) + 1):
            still_open = steps[row] >= now
            committed = np.flatnonzero(steps[row] == now)
            assert still_open[: committed.max() + 1].sum() <= 6
    assert trace is not None
    alone = dc.generate(model, prompts[1:], lengths[1:], config=config)
    np.testing.assert_array_equal(alone.tokens[0], result.tokens[1])


PROMPTS, LENGTHS = np.random.default_rng(3).integers(0, 500, (2, 16)), np.array([5, 12])
RULES = {
    "local leap": {"select": dc.LocalLeap(threshold=0.004, relaxed_threshold=0.002)},
    "hierarchy": {"select": dc.Hierarchy(threshold=0.004, low_threshold=0.002)},
    "frechet": {"select": dc.FrechetProfile(delta=0.0)},
    "entropy bound": {"select": dc.EntropyBound(gamma=15.0, order=dc.ByMargin())},
    "klass": {"select": dc.StableAndConfident(conf_threshold=0.002, kl_threshold=0.1, top_k_cache=600)},
    "credit": {"select": dc.CreditThreshold(threshold=0.004)},
    "falling": {"select": dc.FallingThreshold(threshold=0.004, ahead=4)},
    "schedule": {"select": dc.Schedule(steps=12, order=dc.ByEntropy())},
    "dream": {"select": dc.DreamSchedule(steps=5), "partition": dc.FixedBlocks(block_length=24)},
    "entropy blocks": {"partition": dc.EntropyBlocks(l_min=2, l_max=9)},
}


@pytest.mark.compiler
@pytest.mark.parametrize("name", RULES)
def test_a_row_is_decoded_alone_as_in_a_batch(name):
    parts = {"partition": dc.FixedBlocks(block_length=8), "select": dc.TopOne(), **RULES[name]}
    config = dc.DecodeConfig(**parts, cache=dc.DualCache(margin=4), gen_length=24, stop_at_eos=False)
    model = small_model("dream")
    together = dc.generate(model, PROMPTS, LENGTHS, config=config)
    dc.raise_for_status(together)
    for row in range(2):
        alone = dc.generate(model, PROMPTS[row : row + 1], LENGTHS[row : row + 1], config=config)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_array_equal(alone.commit_step[0], together.commit_step[row])
    if name == "schedule":  # half of each block's passes: two at a time, and never one more
        assert np.unique(together.commit_step[0], return_counts=True)[1].tolist() == [2] * 12
