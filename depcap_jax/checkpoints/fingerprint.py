"""A fingerprint of an array that can be taken in pieces, in any order, wherever they are.

With b_ij the bits of the element in row i and column j, r_i = 0x9E3779B1 i | 1, c_j = 0x85EBCA77 j | 1, it is

    sum over i, j of  r_i c_j b_ij   (mod 2 ** 32).

A sum over parts is the whole, so a sharded array is checked shard by shard. The weights are odd, hence
invertible: one changed element always shows; other damage escapes once in four thousand million.
It guards against accidents, not against forgery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import jax
import numpy as np

_ROW, _COLUMN = np.uint32(0x9E3779B1), np.uint32(0x85EBCA77)

# Elements taken at once. 268 million of bfloat16 took 0.34 s with this, 1.05 s with eight times as many:
# what lies between the products and their sum should stay in the cache.
_BLOCK = 1 << 17

# Elements brought from an accelerator at once.
_TRANSFER = 1 << 24


def fingerprint(values: np.ndarray) -> int:
    """The fingerprint of an array of one or two axes with elements of 2 or 4 bytes."""
    return _part(values.reshape(len(values), -1), 0, 0)


def fingerprint_array(array: jax.Array) -> int:
    """The same number for an array on its devices, of which only small blocks come to the host.

    Processes that share an array each add up their own shards, so all of them must call this.
    """
    total = _total(
        _shard(shard.data, [part.start or 0 for part in shard.index])
        for shard in array.addressable_shards
        if shard.replica_id == 0
    )
    if array.is_fully_addressable:
        return total
    from jax.experimental import multihost_utils

    return _total(int(part) for part in multihost_utils.process_allgather(np.uint32(total)))


def _shard(data: jax.Array, starts: list[int]) -> int:
    first_row, first_column = [*starts, 0][:2]
    return _total(
        _part(rows.reshape(len(rows), -1), first_row + row, first_column) for row, rows in _on_host(data)
    )


def _on_host(data: jax.Array) -> Iterator[tuple[int, np.ndarray]]:
    """Rows of an array on one device, with the number of the first: all at once where that copies nothing."""
    if _shares_memory(data):
        yield 0, np.asarray(data)
        return
    count = max(1, _TRANSFER * len(data) // max(data.size, 1))
    for row in range(0, len(data), count):
        # The start is traced: one small program for all slices of a size.
        yield row, np.asarray(jax.lax.dynamic_slice_in_dim(data, row, min(count, len(data) - row)))


def _shares_memory(data: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in data.devices())


def _part(matrix: np.ndarray, first_row: int, first_column: int) -> int:
    columns = matrix.shape[1]
    count = max(1, _BLOCK // max(columns, 1))
    by_column = np.zeros(columns, np.uint32)
    for row in range(0, len(matrix), count):
        block = np.ascontiguousarray(matrix[row : row + count])
        bits = block.view(f"u{block.dtype.itemsize}").astype(np.uint32, copy=False)
        weights = _weights(_ROW, first_row + row, len(block))
        by_column += (bits * weights[:, None]).sum(axis=0, dtype=np.uint32)
    return int((by_column * _weights(_COLUMN, first_column, columns)).sum(dtype=np.uint32))


def _weights(step: np.uint32, first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint32) * step | np.uint32(1)


def _total(parts: Iterable[int]) -> int:
    return sum(parts) % 2**32
