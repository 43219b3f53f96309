"""What the loop carries, what it returns, and what it needs of a model.

Axis letters, the same everywhere: B rows, T canvas positions, G answer positions (`gen_length`),
W window positions, V vocabulary, K kept tokens, D width of the model, N blocks, F forward passes,
A alternatives, L positions of the longest block.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np


class DiffusionLM(Protocol):
    """All that decoding knows of a model."""

    @property
    def config(self) -> Any:
        """Has `vocab_size, mask_token_id, pad_token_id, eos_token_ids, predicts_next, max_length`."""
        ...

    def hidden(
        self,
        input_ids: jax.Array,
        *,
        valid: jax.Array,
        start: jax.Array | None = None,
        cache: Any = None,
        write: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Hidden states [B, Q, D] of the canvas positions [start, start + Q), and the updated cache."""
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 logits [..., V] of hidden states [..., D]."""
        ...

    def source(self, position: jax.Array) -> jax.Array:
        """Where the model predicts a position."""
        ...

    def init_cache(self, batch: int, length: int) -> Any:
        """An empty cache: a pytree whose leaves all begin with the batch axis."""
        ...


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
            Status.BAD_PROMPT: "the prompt holds an id outside the vocabulary, or its length is outside "
            "[0, prompt_ids.shape[1]]; nothing was decoded",
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
    """[B] int32: where it ends (exclusive); at or before `block_start` until the first block is chosen."""
    kv: Any
    """The model's cache, or None without one."""
    partition: Any
    """The partition policy's memory."""
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
    since_refresh: jax.Array
    """[B] int32: passes since all of the row's keys and values were computed."""
    num_blocks: jax.Array
    """[B] int32: blocks begun."""

    # What is recorded.
    commit_step: jax.Array
    """[B, T] int32: the row's pass at which each position was committed, from 1; 0 elsewhere."""
    block_sizes: jax.Array
    """[B, N] int32: the chosen lengths, zero-padded."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trace:
    """What every pass saw, recorded on request; what it did is in the `DecodeResult` around it.

    Positions are offsets in the answer. F is `gen_length`, the most passes that a row can take.
    """

    confidence: jax.Array
    """[B, F, G] float32: the probability of the token that each candidate (open, inside the block) would be
    committed with; NaN where there is no candidate."""
    guess: jax.Array
    """[B, F, G] int32: that token; -1 where there is no candidate."""
    alternatives: jax.Array
    """[B, G, A] int32: the most likely tokens at the pass that committed the position, best first; -1 if
    none did."""
    alternative_confidence: jax.Array
    """[B, G, A] float32: their probabilities; NaN if no pass committed the position."""
    block_starts: jax.Array
    """[B, N] int32: where each block begins, beside `DecodeResult.block_sizes`; -1 beyond the last one."""
    block_passes: jax.Array
    """[B, N] int32: the pass, from 1, at which it was begun; 0 beyond the last one."""
    signals: Any
    """DepGA's `Signals`, each [B, N, W] float32, over the window from each block's start; NaN where there is
    none, so all of the first block's influence and score. None with a partition that has no signals."""
    conflicts: jax.Array | None
    """[B, F, L, ceil(L / 8)] uint8: each pass's conflicts between members of the pool, by offset from the
    block's start, eight to a byte (`jnp.packbits`). None with a selection that knows no conflicts."""


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
    """[B, G] int32: the row's pass at which each position was committed, from 1; 0 if never."""
    status: jax.Array
    """[B] int32: a `Status`; see `raise_for_status`."""
    trace: Trace | None = None
    """What every pass saw, with `generate(..., trace=True)`."""


def raise_for_status(result: DecodeResult) -> None:
    """Raises `DecodeError`, in words and with the rows, if any row did not end well. Outside jit only."""
    status = np.asarray(result.status)
    complaints = [
        f"row{'s' if len(rows) > 1 else ''} {_listing(rows)}: {code.message}"
        for code in Status
        if code is not Status.OK and len(rows := np.flatnonzero(status == code))
    ]
    if complaints:
        raise DecodeError("; ".join(complaints))


def _listing(rows: Sequence[int] | np.ndarray, most: int = 8) -> str:
    shown = ", ".join(str(row) for row in rows[:most])
    return shown if len(rows) <= most else f"{shown} and {len(rows) - most} more"


def window_at(x: jax.Array, start: jax.Array, width: int, fill: Any) -> jax.Array:
    """x [B, T] at [start, start + width) of each row [B, width]; `fill` beyond the canvas."""
    index = start[:, None] + jnp.arange(width)
    return jnp.take_along_axis(x, index, axis=1, mode="fill", fill_value=fill)
