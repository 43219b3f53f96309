"""The fingerprint that tells a damaged parameter from a whole one."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from depcap_jax.checkpoints import fingerprint as module
from depcap_jax.checkpoints.fingerprint import fingerprint, fingerprint_array

SHAPES = [(1,), (7,), (4096,), (3, 5), (130, 17), (1, 1 << 21), (1 << 21, 1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_array_on_a_device_has_the_same_one(shape, dtype, monkeypatch):
    values = np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)
    if values.size < 10_000:  # the formula as it is written, in Python's integers
        bits = values.view(f"u{values.dtype.itemsize}").astype(object)
        rows = [(i * 0x9E3779B1 % 2**32) | 1 for i in range(shape[0])]
        columns = [(j * 0x85EBCA77 % 2**32) | 1 for j in range(values.size // shape[0])]
        total = sum(
            row * column * bits.reshape(shape[0], -1)[i, j]
            for i, row in enumerate(rows)
            for j, column in enumerate(columns)
        )
        assert fingerprint(values) == total % 2**32
    assert fingerprint_array(jnp.asarray(values)) == fingerprint(values)
    # As from an accelerator: in pieces that need not divide the array.
    monkeypatch.setattr(module, "_shares_memory", lambda _: False)
    monkeypatch.setattr(module, "_TRANSFER", max(1, values.size // 3))
    assert fingerprint_array(jnp.asarray(values)) == fingerprint(values)


@given(st.integers(0, 39), st.integers(0, 30), st.integers(0, 31))
def test_one_flipped_bit_always_shows(row, column, bit):
    values = np.random.default_rng(1).standard_normal((40, 31), np.float32)
    broken = values.copy()
    broken.view(np.uint32)[row, column] ^= np.uint32(1 << bit)
    assert fingerprint(broken) != fingerprint(values)


def test_exchanged_rows_and_columns_show():
    values = np.random.default_rng(2).standard_normal((8, 8), np.float32)
    exchanged = (values, values[::-1], values[:, ::-1], values.T)
    assert len(set(map(fingerprint, exchanged))) == 4
