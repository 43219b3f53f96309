"""Keys and values in every layout: what was written where it may be, and nothing else changed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depcap_jax.models.key_values import KeyValues

LAYERS, T, G, H = 3, 9, 2, 4


@pytest.mark.parametrize(
    ("batch", "rows"), [(1, None), (2, None), (3, (2, 0)), (3, (1,))], ids=["one", "two", "2 of 3", "1 of 3"]
)
@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("positions_first", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_write_is_read_back(batch, rows, layer, positions_first, whole):
    """Against plain indexing, in the layout for XLA's attention and in that for the fused one."""
    rng = np.random.default_rng(0)
    lead = (batch,) if layer is None else (batch, LAYERS)
    places = range(batch) if rows is None else rows
    chosen = None if rows is None else jnp.array(rows, jnp.int32)
    cache = KeyValues.empty((*lead, T, G, H), jnp.float32, positions_first=positions_first)
    assert cache.length == T
    old = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), cache)
    count = T if whole else 4
    k, v = (jnp.asarray(rng.normal(size=(len(places), count, G, H)), jnp.float32) for _ in range(2))
    mask = rng.random((len(places), count)) < 0.5
    start = None if whole else np.arange(3, 3 + len(places), dtype=np.int32)
    index = None if layer is None else jnp.int32(layer)
    new = old.write(k, v, None if start is None else jnp.asarray(start), jnp.asarray(mask), index, chosen)
    for before, after, written in zip(old.read(index), new.read(index), (k, v), strict=True):
        expected = np.array(before)
        assert expected.shape == (batch, T, G, H)
        for n, row in enumerate(places):
            for i in np.flatnonzero(mask[n]):
                expected[row, (0 if start is None else start[n]) + i] = written[n, i]
        np.testing.assert_array_equal(after, expected)
    if rows is not None:
        for part, all_rows in zip(new.read(index, chosen), new.read(index), strict=True):
            np.testing.assert_array_equal(part, all_rows[jnp.array(rows)])
    if layer is not None:
        for other in (0, 2):
            for before, after in zip(old.read(jnp.int32(other)), new.read(jnp.int32(other)), strict=True):
                np.testing.assert_array_equal(after, before)
