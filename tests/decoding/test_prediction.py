"""The head in tiles: what is read of a window is what one reading of all of it gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from predictions import log_softmax
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.compute.prediction import Draw, Glance, look, predict, read_head, read_pairs

WIDTH = 100  # no multiple of a tile
NEAR, WATCH, AHEAD = dc.Reads(top_k=2), dc.Reads(top_k=5), dc.Reads(entropy=True, top_k=8)
POSITION = jnp.asarray(np.arange(WIDTH, dtype=np.int32)[None] + np.array([[3], [7]], np.int32))
DRAW = Draw(None, jnp.asarray(np.zeros(2, np.int32)))


@pytest.fixture(scope="module")
def hidden() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(2, WIDTH, 32)).astype(np.float32)


@jax.jit
def in_tiles(model, hidden, ahead, reach):
    glance = Glance(ahead, reach, NEAR, WATCH, AHEAD)
    return read_head(model, hidden, POSITION, glance, sampling=None, draw=DRAW)


@jax.jit
def at_once(model, hidden):
    logits = model.logits(hidden)
    made = predict(model, logits, POSITION)
    found = [look(logits, made.summary, reads) for reads in (NEAR, WATCH, AHEAD)]
    return [made._replace(entropy=entropy, top=top) for entropy, top in found]


@pytest.mark.parametrize("reach", [(1, 0), (16, 16), (60, 3), (8, 70), (100, 100), (100, 17), (0, 0)])
@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True), (False, False)])
def test_tiles_are_the_whole(hidden, asked, reach):
    """Each row as far as it looks, whichever rows ask the partition, whose tiles come first."""
    model = small_model("llada")
    whole = jax.device_get(at_once(model, hidden))
    tiles = jax.device_get(in_tiles(model, hidden, np.asarray(asked), np.asarray(reach, np.int32)))
    for row, (count, asks) in enumerate(zip(reach, asked, strict=True)):
        for one, other in zip(whole[: 3 if asks else 2], tiles, strict=False):
            for expected, read in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
                np.testing.assert_allclose(read[row, :count], expected[row, :count], rtol=2e-4, atol=1e-5)
            assert (other.log_confidence[row, count:] == -np.inf).all()
    assert [tiles[0].top.ids.shape[-1], tiles[1].top.ids.shape[-1]] == [2, 5], "each what it asked for"


@jax.jit
def choose(model, hidden, count):
    logits = model.logits(hidden)
    prediction = predict(model, logits, POSITION[:, :40])
    return logits, prediction, read_pairs(model, hidden, prediction, count)


@pytest.mark.parametrize("count", [(1, 40), (16, 16), (30, 0), (40, 33)])
def test_pairs_are_the_logits_at_the_chosen_tokens(hidden, count):
    """log p_i(y_j), from the head's columns of the chosen tokens alone."""
    logits, prediction, pairs = jax.device_get(
        choose(small_model("llada"), hidden[:, :40], np.asarray(count, np.int32))
    )
    log_p = log_softmax(logits)
    for row in range(2):
        expected = log_p[row][:, prediction.token[row]]
        expected[:, count[row] :] = 0
        np.testing.assert_allclose(pairs[row], expected, rtol=1e-4, atol=1e-4)
        assert (pairs[row, :, count[row] :] == 0).all()
