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
