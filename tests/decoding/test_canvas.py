"""`generate_canvas`: open positions anywhere, and everything else as it was."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from small_models import small_model

import depcap_jax as dc

SIZES = {"gen_length": 16, "block_length": 8, "threshold": 0.3, "stop_at_eos": False}
CONFIG = dc.recipe("confidence", **SIZES)
TOKENS = np.random.default_rng(2).integers(0, 500, (3, 28)).astype(np.int32)


def test_a_prompt_and_an_answer_are_a_canvas():
    lengths = np.array([12, 5, 9], np.int32)
    position = np.arange(28)[None]
    open_ = (position >= lengths[:, None]) & (position < lengths[:, None] + 16)
    model = small_model("llada")
    expected = dc.generate(model, TOKENS[:, :12], lengths, config=CONFIG)
    result = dc.generate_canvas(model, TOKENS, open_, lengths + 16, config=CONFIG)
    for field in ("tokens", "lengths", "nfe", "block_sizes", "commit_step", "status"):
        np.testing.assert_array_equal(getattr(result, field), getattr(expected, field), field)


def test_gaps_are_filled_and_the_rest_stays():
    open_ = np.zeros(TOKENS.shape, bool)
    open_[0, 6:9] = open_[0, 15:18] = open_[1, 0] = True  # the third row has nothing to decode
    result = dc.generate_canvas(small_model("dream"), TOKENS, open_, np.full(3, 28), config=CONFIG)
    assert result.status.tolist() == [dc.Status.OK] * 3
    kept = ~open_[0, 6:18]
    np.testing.assert_array_equal(np.asarray(result.tokens[0, :12])[kept], TOKENS[0, 6:18][kept])
    np.testing.assert_array_equal(np.asarray(result.commit_step[0, :12]) > 0, ~kept)
    assert result.nfe.tolist()[2] == 0


def test_an_end_of_text_in_a_gap_overwrites_nothing():
    """It ends the row, as asked; what was given behind it stays."""
    model = small_model("llada")
    loud: Any = jax.tree.map(lambda leaf: leaf, model)
    loud.head[...] = jnp.zeros_like(loud.head[...]).at[:, model.config.eos_token_ids[0]].set(1.0)
    open_ = np.zeros(TOKENS.shape, bool)
    open_[:, 5] = open_[:, 12] = True
    config = dc.recipe("confidence", **{**SIZES, "stop_at_eos": True})
    result = dc.generate_canvas(loud, TOKENS, open_, np.full(3, 28), config=config)
    for row in range(3):
        if int(result.tokens[row, 0]) == model.config.eos_token_ids[0]:
            np.testing.assert_array_equal(result.tokens[row, 1:7], TOKENS[row, 6:12])
    assert model.config.eos_token_ids[0] in np.asarray(result.tokens[:, 0])


def test_a_span_that_is_too_long_or_an_id_that_is_none_has_a_status():
    open_ = np.zeros(TOKENS.shape, bool)
    open_[:, 4] = open_[0, 20] = True
    tokens = TOKENS.copy()
    tokens[1, 3], tokens[2, 4] = 512, 9999  # what stands at an open position does not matter
    result = dc.generate_canvas(small_model("llada"), tokens, open_, np.array([28, 28, 28]), config=CONFIG)
    assert result.status.tolist() == [dc.Status.BAD_PROMPT, dc.Status.BAD_PROMPT, dc.Status.OK]
