"""What the loop carries from turn to turn, and what it returns."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction


class Status(enum.IntEnum):
    """How a row ended."""

    OK = 0
    NON_FINITE = 1
    BAD_PROMPT = 2

    @property
    def message(self) -> str:
        """What happened, in words."""
        return {
            Status.OK: "decoded",
            Status.NON_FINITE: "the model gave logits that are not finite (NaN or infinite) and the row "
            "was ended there. Check the checkpoint, or decode in float32 or bfloat16 instead of float16",
            Status.BAD_PROMPT: "the prompt holds an id outside the vocabulary, its length is outside "
            "[0, prompt_ids.shape[1]], or the answer exceeds the context or gen_length; nothing was decoded",
        }[self]


class DecodeError(RuntimeError):
    """Raised by `raise_for_status` when a row did not end well."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeState:
    """Everything that one turn of the loop hands to the next; every leaf begins with the batch axis."""

    # What evolves.
    tokens: jax.Array
    """[B, T] int32: the canvas; open positions hold the mask id."""
    open: jax.Array
    """[B, T] bool: what is still to be decoded. Never read off the tokens: a prompt may hold the mask id."""
    block_start: jax.Array
    """[B] int32: where the current block begins."""
    block_end: jax.Array
    """[B] int32: where it ends (exclusive); at or before `block_start` while a block is not chosen yet."""
    partition: Any
    """The partition's memory."""
    select: Any
    """The selection's memory."""
    cache: Any
    """The cache's memory: keys and values, above all."""
    status: jax.Array
    """[B] int32: a `Status`."""

    # What stays as it was given.
    answer_start: jax.Array
    """[B] int32: the first position of the answer."""
    answer_end: jax.Array
    """[B] int32: one past the last position that may be decoded."""
    length: jax.Array
    """[B] int32: positions from here on are padding, which nobody attends to."""
    key: jax.Array | None
    """[B] random keys, or None without sampling."""

    # What is counted.
    nfe: jax.Array
    """[B] int32: forward passes that the row took part in."""
    num_blocks: jax.Array
    """[B] int32: blocks begun."""

    # What is recorded.
    commit_step: jax.Array
    """[B, T] int32: the row's pass at which each position was committed, for the last time, from 1; 0 where
    it is open or was given."""
    block_sizes: jax.Array
    """[B, N] int32: the chosen lengths, zero-padded."""


class Turn(NamedTuple):
    """What a turn looked at and decided, for those who watch; every leaf begins with the batch axis."""

    active: jax.Array
    """[B] bool: rows that took part."""
    asked: jax.Array
    """[B] bool: rows whose partition chose a length."""
    start: jax.Array
    """[B] int32: the block's first position, from the answer's start."""
    read: jax.Array
    """[B] int32: positions from there on that the head was read at."""
    prediction: Prediction
    """Of the L positions from there on: what the caller of `decode_step` reads."""
    candidates: jax.Array
    """[B, L] bool: open, inside the block, and the row takes part."""
    taken: jax.Array
    """[B, L] bool: what was committed."""
    revoked: jax.Array
    """[B, L] bool: what had been committed on an earlier turn and is open again."""
    partition: Any
    """What the partition tells; zeros for rows that did not ask."""
    select: Any
    """What the selection tells."""
    cache: Any
    """What the cache tells."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DecodeResult:
    """What `generate` returns."""

    tokens: jax.Array
    """[B, G] int32: the answers; with `stop_at_eos`, what follows the end-of-text token holds the pad id."""
    lengths: jax.Array
    """[B] int32: visible tokens, those before the end-of-text token."""
    nfe: jax.Array
    """[B] int32: forward passes that the row took part in."""
    block_sizes: jax.Array
    """[B, N] int32: the chosen block lengths, zero-padded."""
    commit_step: jax.Array
    """[B, G] int32: the row's pass at which each position was committed, for the last time where a selection
    revokes, from 1; 0 if never."""
    status: jax.Array
    """[B] int32: a `Status`; see `raise_for_status`."""
    trace: Any = None
    """The `Trace` of `generate(..., trace=True)`."""


def raise_for_status(result: DecodeResult) -> None:
    """Raises `DecodeError`, in words and with the rows, if any row did not end well. Outside jit only.

    Of a batch that is split over processes each looks at the rows it holds, and waits for no other.
    """
    status = _at_hand(result.status)
    complaints = [
        f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:8]))}"
        f"{f' and {len(rows) - 8} more' if len(rows) > 8 else ''}: {code.message}"
        for code in Status
        if code is not Status.OK and len(rows := np.flatnonzero(status == code))
    ]
    if complaints:
        raise DecodeError("; ".join(complaints))


def _at_hand(status: jax.Array) -> np.ndarray:
    """The statuses [B]; those of rows that only other processes hold are OK, for all that is known here."""
    if not isinstance(status, jax.Array) or status.is_fully_addressable or status.is_fully_replicated:
        return np.asarray(status)
    known = np.full(status.shape, int(Status.OK), np.int32)
    for part in status.addressable_shards:
        known[part.index] = part.data
    return known


def window_at(x: jax.Array, start: jax.Array, width: int, fill: Any) -> jax.Array:
    """x [B, T] at [start, start + width) of each row [B, width]; `fill` beyond the canvas."""
    index = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
    inside = (index >= 0) & (index < x.shape[1])
    found = numerics.take(x, jnp.clip(index, 0, x.shape[1] - 1))
    return jnp.where(inside, found, jnp.asarray(fill, x.dtype))
