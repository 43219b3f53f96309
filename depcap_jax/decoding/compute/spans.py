"""A forward pass over a span of each row, and the keys and values it leaves.

Every row has a span of its own. Passes are compiled for a few static widths, and a row takes the smallest
that holds its span. Rows of one wide width run in groups, one group after the other; their number is data,
so rows that are done, that wait or whose spans are narrow cost little. Extra positions inside a width and
extra rows inside a group write nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.attention import Watch
from depcap_jax.decoding.model import AttentiveLM, DiffusionLM
from depcap_jax.decoding.state import DecodeState


class Spans(NamedTuple):
    """What a pass recomputes of each row: [begin, end), inside the canvas."""

    active: jax.Array  # [B] bool: rows that take part
    begin: jax.Array  # [B] int32
    end: jax.Array  # [B] int32: exclusive

    def contain(self, position: jax.Array) -> jax.Array:
        """Which of the canvas positions [B, Q] an active row recomputes [B, Q]."""
        inside = (position >= self.begin[:, None]) & (position < self.end[:, None])
        return inside & self.active[:, None]


class Widths(NamedTuple):
    """How passes are compiled: for which widths, and how many rows of each run at once."""

    width: tuple[int, ...]  # ascending; the last one is the canvas
    rows: tuple[int, ...]  # how many at once: the whole batch for the narrow ones

    @classmethod
    def plan(cls, wanted: tuple[int, ...], batch: int, canvas: int, together: int) -> Widths:
        """Of the widths `wanted`, those below the canvas; groups of no more than `together` positions.

        0: the whole batch.
        """
        width = (*sorted({w for w in wanted if w < canvas}), canvas)
        return cls(width, tuple(_group(batch, together // w) if together else batch for w in width))

    def choose(self, needed: jax.Array, active: jax.Array) -> jax.Array:
        """The number [B] of the smallest width that holds `needed` [B], from 1; 0 if not `active`.

        Rows whose width runs the whole batch at once share the widest of theirs: one pass in place of two.
        """
        smaller = jnp.asarray(self.width, jnp.int32)[None] < needed[:, None]
        number = jnp.where(active, 1 + jnp.sum(smaller, axis=1, dtype=jnp.int32), 0)
        shares = active & (number <= sum(rows == len(active) for rows in self.rows))
        return jnp.where(shares, jnp.max(jnp.where(shares, number, 0)), number)


BUSY_ACCELERATOR = 512
"""What `busy` says of anything but a CPU."""


def busy(model: DiffusionLM) -> int:
    """How many positions keep the processor busy: below that, the time is that of reading the weights.

    Measured on CPUs, of 32, 64 and 128 positions: a model that stays in the processor's own memory was
    fastest at the first, one of 100 MB at the last.
    """
    if jax.default_backend() != "cpu":
        return BUSY_ACCELERATOR
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(model))
    return 32 if size <= 2**25 else 128


def _group(batch: int, most: int) -> int:
    """Rows in a group: the batch, halved until it is at most `most`, so that groups divide it if they can.

    Each row of a group has instructions of its own, so there are few; where more would be wanted, passes are
    narrow and nearly all rows take part: they all run.
    """
    rows = batch
    while rows > max(most, 1):
        rows = -(-rows // 2)
    return rows if rows <= 8 else batch


class Told(NamedTuple):
    """What a pass tells of each window."""

    hidden: jax.Array  # [B, window, D] the hidden states that predict it
    attention: jax.Array | None  # [B, W, T] the weights of the first positions' queries, if anybody asks


def run_spans(
    model: DiffusionLM,
    state: DecodeState,
    spans: Spans,
    window: int,
    kv: Any,
    widths: Widths,
    watch: Watch,
) -> tuple[Told, Any, jax.Array]:
    """One forward pass over the spans.

    Args:
      model: what to run.
      state: the canvas, and where the blocks start.
      spans: what to recompute. Queries see all keys and values of the row: new ones inside of its span, and
        those kept in `kv` outside.
      window: how many positions from a block's start are to be predicted.
      kv: the model's keys and values; None if there are none to keep, and spans begin at 0.
      widths: what is compiled.
      watch: whose attention is told, too.

    Returns:
      What is told of the windows of rows that took part; the keys and values; the width [B] at which each
      row was computed, 0 if it took no part.
    """
    batch, canvas = state.tokens.shape

    def plan() -> tuple[jax.Array, jax.Array, Spans]:
        first = spans.begin
        if model.config.predicts_next:  # the position before the block is a query too; its keys stay
            first = jnp.minimum(first, model.source(state.block_start))
        return first, widths.choose(spans.end - first, spans.active), spans

    # Under a condition, so that it is computed here and not by each fusion that reads it.
    first, chosen, spans = numerics.if_any(spans.active, plan)
    order = jnp.argsort(chosen).astype(jnp.int32)  # the rows of one width stand together
    hidden = jax.eval_shape(lambda: model.hidden(state.tokens)[0])
    told = Told(jnp.zeros_like(hidden, shape=(batch, window, hidden.shape[-1])), None)
    if watch.layers:
        nothing = jnp.zeros_like(hidden, jnp.float32, shape=(batch, watch.positions, canvas))
        told = told._replace(attention=nothing)
    carry = (told, kv)
    # XLA copies a buffer that is changed inside a conditional; what a loop carries is changed in place.
    for number, (width, size) in enumerate(zip(*widths, strict=True), start=1):
        active = chosen == number
        rows = _Rows(state.tokens, state.length, state.block_start, first, spans._replace(active=active))
        prepare = functools.partial(_prepare, model, width, window, watch, kv is not None)
        if size == batch:
            body = _run_all(prepare, rows)
        else:
            before = jnp.sum(chosen < number, dtype=jnp.int32)
            body = _run_group(prepare, rows, jnp.roll(order, -before), size)
        groups = lax.div(jnp.sum(active, dtype=jnp.int32) + (size - 1), jnp.int32(size))
        carry = lax.fori_loop(0, groups, body, carry)
    return carry[0], carry[1], jnp.take(jnp.asarray((0, *widths.width), jnp.int32), chosen, mode="clip")


class _Rows(NamedTuple):
    """What a pass knows of some rows: their parts of the state, and their spans."""

    tokens: jax.Array  # [B, T]
    length: jax.Array  # [B], as all that follows
    block_start: jax.Array
    first: jax.Array  # the first query
    spans: Spans


_Carry = tuple[Told, Any]
_Run = Callable[[jax.Array, Any], _Carry]
"""A pass: of the loop's index and the keys and values, what is told, and the new keys and values."""
_Body = Callable[[jax.Array, _Carry], _Carry]


def _run_all(prepare: Callable[..., _Run], rows: _Rows) -> _Body:
    """All rows at once; of those that are not active no keys and values change.

    What is told of them does: at most one pass over all rows runs, and those in groups follow it.
    """
    # What all layers share is computed out here: inside of the loop, XLA repeats it in each layer.
    run = prepare(rows)

    def body(index: jax.Array, carry: _Carry) -> _Carry:
        return run(index, carry[1])

    return body


def _run_group(prepare: Callable[..., _Run], rows: _Rows, order: jax.Array, size: int) -> _Body:
    """`size` rows at a time, in the order [B] given: the active ones come first."""

    def body(group: jax.Array, carry: _Carry) -> _Carry:
        # Where the batch does not divide, the last group takes some rows again: to the same effect.
        chosen = lax.dynamic_slice_in_dim(order, group * size, size)
        part = jax.tree.map(lambda x: jnp.take(x, chosen, axis=0, mode="clip"), rows)
        told, kv = carry
        fresh, kv = prepare(part, chosen)(group, kv)

        def put(whole: jax.Array, new: jax.Array) -> jax.Array:
            old = jnp.take(whole, chosen, axis=0, mode="clip")
            new = jnp.where(part.spans.active[:, None, None], new, old)
            return whole.at[chosen].set(new, mode="promise_in_bounds", unique_indices=True)

        return jax.tree.map(put, told, fresh), kv

    return body


def _prepare(
    model: DiffusionLM,
    width: int,
    window: int,
    watch: Watch,
    cached: bool,
    rows: _Rows,
    chosen: jax.Array | None = None,
) -> _Run:
    """The pass over [first, first + width) of each row; 0 is the first where nothing is `cached`.

    The rows are those `chosen` of the batch, or all of it.
    """
    canvas = rows.tokens.shape[1]
    # Without a cache, rows that take no part may be longer than what is seen of them.
    lengths = rows.length if cached else jnp.minimum(rows.length, width)
    if width == canvas or not cached:
        start, tokens = None, rows.tokens[:, :width]
        position = jnp.arange(width, dtype=jnp.int32)[None]
    else:
        start = jnp.minimum(rows.first, canvas - width)  # near the end it begins earlier
        position = start[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
        tokens = numerics.take(rows.tokens, position)
    write = rows.spans.contain(position)

    def run(index: jax.Array, kv: Any) -> _Carry:
        # Else XLA moves the first layer's products out of the loop, to turns on which the pass does not run.
        inputs, _ = lax.optimization_barrier((tokens, index))
        span: Any = {"lengths": lengths, "start": start, "cache": kv, "write": write, "rows": chosen}
        weights = None
        if watch.layers:
            look = cast(AttentiveLM, model).hidden_and_attention
            hidden, kv, weights = look(inputs, predicting()[:, : watch.positions], watch.layers, **span)
            # Without a cache, keys are those of the pass alone.
            weights = jnp.pad(weights, ((0, 0), (0, 0), (0, canvas - weights.shape[-1])))
        else:
            hidden, kv = model.hidden(inputs, **span)
        return Told(numerics.take(hidden, predicting()[..., None], axis=1), weights), kv

    def predicting() -> jax.Array:
        """[B, window] which of the pass's queries predict the window; beyond the pass they mean nothing."""
        source = model.source(rows.block_start[:, None] + jnp.arange(window, dtype=jnp.int32)[None])
        offset = source if start is None else source - start[:, None]
        return jnp.clip(offset, 0, width - 1)

    return run
