"""What is recomputed, what is reused? One turn's forward pass, and the keys and values it leaves.

A pass covers the whole canvas (a refresh) or, of each row, the span from its block's start to where the
policy says, at the smallest of a few compiled widths that holds the widest span. Extra positions inside
a width write nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding import numerics
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.state import DecodeState

# No pass is compiled for fewer positions: below this its cost is that of reading the weights.
_NARROWEST = 16


class Sizes(NamedTuple):
    """The lengths that shapes depend on."""

    gen_length: int
    shortest: int  # the shortest block, but for an answer's last one
    longest: int  # the longest block
    window: int  # positions that are predicted from a block's start: at least `longest`


class Rows(NamedTuple):
    """Who wants a forward pass."""

    live: jax.Array  # [B] bool: rows that still have something to decode
    at_start: jax.Array  # [B] bool: live rows whose block is done


class Pass(NamedTuple):
    """A forward pass."""

    active: jax.Array  # [B] bool: rows that take part
    hidden: jax.Array  # [B, window, D]: what predicts [block_start, block_start + window)
    end: jax.Array  # [B] int32: the hidden states that predict positions from here on mean nothing


class PassInfo(NamedTuple):
    """What a trace records of a pass."""

    refresh: jax.Array  # [B] bool: all of the row's keys and values were computed anew
    width: jax.Array  # [B] int32: positions that the pass computed, of every row


class Cache(Protocol):
    """A rule for what to reuse."""

    def init(self, model: DiffusionLM, batch: int, length: int) -> Any:
        """Its memory before the first pass: a pytree whose leaves begin with the batch axis."""
        ...

    def __call__(
        self, model: DiffusionLM, state: DecodeState, sizes: Sizes, rows: Rows, memory: Any
    ) -> tuple[Pass, Any, Any]:
        """One forward pass over some of the rows; the new memory; and its info, as a partition's.

        Args:
          model: what to run.
          state: the canvas, and where each row's block lies: a row at a start has moved there, but its end
            is not known yet.
          sizes: how many hidden states are wanted.
          rows: at least one live row must take part, and none at a start without a full pass.
          memory: what the last call returned.
        """
        ...


@policy
class NoCache:
    """Every pass is a full one."""

    def init(self, model: DiffusionLM, batch: int, length: int) -> None:
        """Nothing is kept."""
        return None

    def __call__(
        self, model: DiffusionLM, state: DecodeState, sizes: Sizes, rows: Rows, memory: None
    ) -> tuple[Pass, None, PassInfo]:
        """One pass over the canvas, for all rows."""
        hidden, _ = model.hidden(state.tokens, lengths=state.length)
        hidden = _predicting(model, hidden, state.block_start, sizes.window)
        width = jnp.full_like(state.block_start, state.tokens.shape[1])
        return Pass(rows.live, hidden, state.answer_end), None, PassInfo(rows.live, width)


class BlockMemory(NamedTuple):
    """What a cache keeps."""

    kv: Any  # the model's keys and values
    passes: jax.Array  # [B] int32: passes since all of the row's keys and values were computed


@policy
class BlockCache:
    """Fast-dLLM's caches: a full pass at each block start, spans from the block's start between them.

    A row that is due for a full pass waits until a `quorum` of the live rows is due, so that they share it;
    waiting costs a row no pass of its own and changes none of its tokens.
    """

    keep_suffix: ClassVar[bool]
    """Whether what follows the block keeps its keys and values too."""
    quorum: Number = setting(
        default=1.0,
        low=0,
        high=1,
        doc="share of the live rows that must be due for a full pass",
    )
    refresh_every: int | jax.Array = setting(
        default=0, low=0, static=False, doc="a full pass also after this many passes inside a block; 0: never"
    )

    def init(self, model: DiffusionLM, batch: int, length: int) -> BlockMemory:
        """Room for the keys and values of the whole canvas."""
        return BlockMemory(model.init_cache(batch, length), jnp.zeros(batch, jnp.int32))

    def __call__(
        self, model: DiffusionLM, state: DecodeState, sizes: Sizes, rows: Rows, memory: BlockMemory
    ) -> tuple[Pass, BlockMemory, PassInfo]:
        """A full pass if any row refreshes, else one over the spans; rows that are due may wait."""
        stale = (self.refresh_every > 0) & (memory.passes >= self.refresh_every)
        due = rows.live & (rows.at_start | stale)
        together = _count(due) >= self.quorum * _count(rows.live)
        refresh = due & together
        active = refresh | (rows.live & ~due)
        spans = _Spans(active, refresh, state.block_end if self.keep_suffix else state.answer_end)
        widths = block_widths(sizes) if self.keep_suffix else suffix_widths(sizes)
        needed = jnp.max(jnp.where(active, spans.end - state.block_start, 0))
        index = jnp.where(jnp.any(refresh), len(widths), choose_width(widths, needed))
        passes = [_span_pass(model, state, spans, sizes.window, width) for width in widths]
        passes.append(_full_pass(model, state, spans, sizes.window))
        hidden, kv = _switch_in_place(index, passes, memory.kv)
        computed = jnp.asarray((*widths, state.tokens.shape[1]), jnp.int32)[index]
        info = PassInfo(refresh, jnp.full_like(state.block_start, computed))
        end = jnp.where(refresh, state.answer_end, spans.end)
        since = jnp.where(refresh, 1, memory.passes + active.astype(jnp.int32))
        return Pass(active, hidden, end), BlockMemory(kv, since), info


@policy
class PrefixCache(BlockCache):
    """Fast-dLLM's prefix cache: between full passes, the block and all that follows it are recomputed."""

    keep_suffix = False


@policy
class DualCache(BlockCache):
    """Fast-dLLM's dual cache: between full passes, only the block is recomputed."""

    keep_suffix = True


def block_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for blocks: up to three, in equal ratios from the narrowest to the longest one."""
    narrowest = min(max(_NARROWEST, sizes.shortest), sizes.longest)
    middle = _NARROWEST * math.ceil(math.sqrt(narrowest * sizes.longest) / _NARROWEST)
    return tuple(sorted({narrowest, min(middle, sizes.longest), sizes.longest}))


def suffix_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for what is left of an answer: its quarters."""
    return tuple(sorted({-(-sizes.gen_length * quarter // 4) for quarter in (1, 2, 3, 4)}))


def choose_width(widths: tuple[int, ...], needed: jax.Array) -> jax.Array:
    """Index of the smallest of `widths` that holds `needed`."""
    smaller = jnp.asarray(widths, jnp.int32) < needed[None]
    return jnp.minimum(jnp.sum(smaller, dtype=jnp.int32), len(widths) - 1)


class _Spans(NamedTuple):
    """What a pass recomputes of each row."""

    active: jax.Array  # [B] bool
    refresh: jax.Array  # [B] bool
    end: jax.Array  # [B] int32: where the span that began with the block ends

    def contain(self, state: DecodeState, position: jax.Array) -> jax.Array:
        """Which of the canvas positions [B, Q] an active row recomputes [B, Q]."""
        inside = (position >= state.block_start[:, None]) & (position < self.end[:, None])
        return inside & self.active[:, None]


_RunPass = Callable[[Any], tuple[jax.Array, Any]]
"""Of the keys and values: the hidden states [B, window, D], and the keys and values after it."""


def _switch_in_place(index: jax.Array, passes: Sequence[_RunPass], kv: Any) -> tuple[jax.Array, Any]:
    """`lax.switch` for passes that update a cache: each branch is a loop that runs once or not at all.

    XLA copies a buffer that is changed inside a conditional; what a loop carries is changed in place.
    """
    hidden = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(passes[0], kv)[0])
    carry = (index, hidden, kv)
    for number, run in enumerate(passes):
        carry = lax.while_loop(
            lambda carry, number=number: carry[0] == number,
            lambda carry, run=run: (jnp.full_like(carry[0], -1), *run(carry[2])),
            carry,
        )
    return carry[1:]


def _full_pass(model: DiffusionLM, state: DecodeState, spans: _Spans, window: int) -> _RunPass:
    """A pass over the canvas; rows that do not refresh still see their old keys outside their span.

    What all layers share is computed here, outside of the branch: inside, XLA repeats it in each layer.
    """
    write = spans.refresh[:, None] | spans.contain(state, _canvas(state))

    def run(kv: Any) -> tuple[jax.Array, Any]:
        hidden, kv = model.hidden(state.tokens, lengths=state.length, cache=kv, write=write)
        return _predicting(model, hidden, state.block_start, window), kv

    return run


def _span_pass(model: DiffusionLM, state: DecodeState, spans: _Spans, window: int, width: int) -> _RunPass:
    """A pass over [block_start, block_start + width) of each row.

    A model that predicts the next position needs the one before the block as a query too; its keys and
    values stay.
    """
    canvas = state.tokens.shape[1]
    size = min(width + int(model.config.predicts_next), canvas)
    start = jnp.clip(model.source(state.block_start), 0, canvas - size)  # near an end it begins earlier
    position = start[:, None] + jnp.arange(size, dtype=jnp.int32)[None]
    tokens = numerics.take(state.tokens, position)
    write = spans.contain(state, position)

    def run(kv: Any) -> tuple[jax.Array, Any]:
        hidden, kv = model.hidden(tokens, lengths=state.length, start=start, cache=kv, write=write)
        return _predicting(model, hidden, state.block_start, window, first=start), kv

    return run


def _predicting(
    model: DiffusionLM,
    hidden: jax.Array,
    block_start: jax.Array,
    count: int,
    *,
    first: jax.Array | None = None,
) -> jax.Array:
    """Of hidden states [B, Q, D], those that predict `count` positions from the block's start.

    They are of the positions from `first` [B] on; None: of the whole canvas.
    """
    source = model.source(block_start[:, None] + jnp.arange(count, dtype=jnp.int32)[None])
    offset = source if first is None else source - first[:, None]
    index = jnp.clip(offset, 0, hidden.shape[1] - 1)  # beyond the pass they mean nothing
    return numerics.take(hidden, index[..., None], axis=1)


def _canvas(state: DecodeState) -> jax.Array:
    """The canvas positions [1, T]."""
    return jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None]


def _count(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, dtype=jnp.float32)
