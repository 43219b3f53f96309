"""Few shapes for many prompts: the widths they are padded to, and the batches that come of it.

Axis letters: B rows, P prompt positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

SHORTEST_PROMPT = 32
"""The narrowest width: below it a compilation costs more than the padding does."""


class PaddedBatch(NamedTuple):
    """What `generate` takes."""

    prompts: np.ndarray  # [B, P] int32
    lengths: np.ndarray  # [B] int32
    key: jax.Array | None  # [B], for sampling


def pad_batch(
    ids: Sequence[Sequence[int]],
    batch: Sequence[int],
    *,
    rows: int,
    width: int,
    fill: int,
    key: jax.Array | None,
) -> PaddedBatch:
    """The prompts `batch` of `ids` on `rows` rows of `width`; copies of the last one fill it up."""
    padded = [*batch, *[batch[-1]] * (rows - len(batch))]
    prompts = np.full((rows, width), fill, np.int32)
    for row, index in zip(prompts, padded, strict=True):
        row[: len(ids[index])] = ids[index]
    lengths = np.asarray([len(ids[index]) for index in padded], np.int32)
    return PaddedBatch(prompts, lengths, row_keys(key, padded))


def row_keys(key: jax.Array | None, indices: Sequence[int]) -> jax.Array | None:
    """What each row draws with: a function of the prompt's index, whatever its batch is."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return None if key is None else fold(key, np.asarray(indices, np.uint32))


def doubling(first: int, last: int) -> tuple[int, ...]:
    """first, 2 first, 4 first, ... below `last`, and `last` itself."""
    widths = []
    while first < last:
        widths.append(first)
        first *= 2
    return (*widths, last)


def at_least(needed: int, widths: Sequence[int]) -> int:
    """The first of the ascending `widths` that is no less than `needed`."""
    return next(width for width in widths if width >= needed)
