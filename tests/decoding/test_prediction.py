"""The head in tiles: what is read of a window is what one reading of all of it gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.prediction import Draw, Glance, predict, read_head, read_pairs

WIDTH = 100  # no multiple of either tile: the last one overlaps
NEAR, WATCH, AHEAD = dc.Reads(top_k=2), dc.Reads(top_k=5), dc.Reads(entropy=True, top_k=8)
POSITION = jnp.arange(WIDTH, dtype=jnp.int32)[None] + jnp.array([[3], [7]])
DRAW = Draw(None, jnp.zeros(2, jnp.int32))


@pytest.fixture(scope="module")
def hidden() -> jax.Array:
    return jax.random.normal(jax.random.key(0), (2, WIDTH, 32))


@jax.jit
def in_tiles(model, hidden, ahead, reach):
    glance = Glance(ahead, reach, NEAR, WATCH, AHEAD)
    return read_head(model, hidden, POSITION, glance, sampling=None, draw=DRAW)


@jax.jit
def at_once(model, hidden):
    return predict(model, model.logits(hidden), POSITION, NEAR, WATCH, AHEAD)


@pytest.mark.parametrize("reach", [1, 16, 60, 70, 100])
@pytest.mark.parametrize("ahead", [True, False])
def test_tiles_are_the_whole(hidden, ahead, reach):
    model = small_model("llada")
    whole = at_once(model, hidden)
    tiles = in_tiles(model, hidden, jnp.asarray(ahead), jnp.int32(reach))
    for one, other in zip(whole[: 3 if ahead else 2], tiles, strict=False):
        for expected, read in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(read[:, :reach], expected[:, :reach], rtol=2e-4, atol=1e-5)
        assert (np.asarray(other.log_confidence[:, reach:]) == -np.inf).all()
    assert [tiles[0].top.ids.shape[-1], tiles[1].top.ids.shape[-1]] == [2, 5], "each what it asked for"


@pytest.mark.parametrize("count", [1, 16, 30, 40])
def test_pairs_are_the_logits_at_the_chosen_tokens(hidden, count):
    """log p_i(y_j), from the head's columns of the chosen tokens alone."""
    model, part = small_model("llada"), hidden[:, :40]
    logits = model.logits(part)
    (prediction,) = predict(model, logits, POSITION[:, :40], dc.Reads())
    pairs = jax.jit(read_pairs)(model, part, prediction, jnp.int32(count))
    log_p = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    for b, i, j in np.ndindex(2, 40, count):
        assert pairs[b, i, j] == pytest.approx(log_p[b, i, prediction.token[b, j]], rel=1e-4, abs=1e-4)
