"""The head in tiles: what is read of a window is what one reading of all of it gives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.compute.prediction import Draw, Glance, predict, read_head, read_pairs

WIDTH = 100  # no multiple of a tile
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
    logits = model.logits(hidden)
    return [predict(model, logits, POSITION, reads) for reads in (NEAR, WATCH, AHEAD)]


@pytest.mark.parametrize("reach", [(1, 0), (16, 16), (60, 3), (8, 70), (100, 100), (100, 17), (0, 0)])
@pytest.mark.parametrize("asked", [(True, True), (True, False), (False, True), (False, False)])
def test_tiles_are_the_whole(hidden, asked, reach):
    """Each row as far as it looks, whichever rows ask the partition, whose tiles come first."""
    model = small_model("llada")
    whole = at_once(model, hidden)
    tiles = in_tiles(model, hidden, jnp.asarray(asked), jnp.asarray(reach, jnp.int32))
    for row, (count, asks) in enumerate(zip(reach, asked, strict=True)):
        for one, other in zip(whole[: 3 if asks else 2], tiles, strict=False):
            for expected, read in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
                np.testing.assert_allclose(read[row, :count], expected[row, :count], rtol=2e-4, atol=1e-5)
            assert (np.asarray(other.log_confidence[row, count:]) == -np.inf).all()
    assert [tiles[0].top.ids.shape[-1], tiles[1].top.ids.shape[-1]] == [2, 5], "each what it asked for"


@pytest.mark.parametrize("count", [(1, 40), (16, 16), (30, 0), (40, 33)])
def test_pairs_are_the_logits_at_the_chosen_tokens(hidden, count):
    """log p_i(y_j), from the head's columns of the chosen tokens alone."""
    model, part = small_model("llada"), hidden[:, :40]
    logits = model.logits(part)
    prediction = predict(model, logits, POSITION[:, :40])
    pairs = jax.jit(read_pairs)(model, part, prediction, jnp.asarray(count, jnp.int32))
    log_p = np.asarray(jax.nn.log_softmax(logits, axis=-1))
    for b, i, j in np.ndindex(2, 40, 40):
        if j >= count[b]:
            assert pairs[b, i, j] == 0
            continue
        assert pairs[b, i, j] == pytest.approx(log_p[b, i, prediction.token[b, j]], rel=1e-4, abs=1e-4)
