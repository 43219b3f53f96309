"""What is recomputed, what is reused? The spans of one turn's forward pass; `compute/spans.py` runs it."""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute.attention import Watch
from depcap_jax.decoding.compute.spans import Spans, Widths, busy, run_spans
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.policy import Number, policy, setting
from depcap_jax.decoding.state import DecodeState

# No pass is compiled for fewer positions: below this its cost is that of reading the weights.
_NARROWEST = 8
# Other widths are multiples of this: fewer programs, and the processor's vectors are full.
_STEP = 16


class Sizes(NamedTuple):
    """The lengths that shapes depend on."""

    gen_length: int
    shortest: int  # the shortest block, but for an answer's last one
    longest: int  # the longest block
    window: int  # positions that are predicted from a block's start: at least `longest`
    watch: Watch = Watch()  # whose attention a pass tells


class Rows(NamedTuple):
    """Who wants a forward pass."""

    live: jax.Array  # [B] bool: rows that still have something to decode
    at_start: jax.Array  # [B] bool: live rows whose block is done


class Pass(NamedTuple):
    """A forward pass."""

    active: jax.Array  # [B] bool: rows that take part
    hidden: jax.Array  # [B, window, D]: what predicts [block_start, block_start + window)
    end: jax.Array  # [B] int32: the hidden states that predict positions from here on mean nothing
    attention: jax.Array | None = None  # [B, W, T] of the first `sizes.watch.positions`, if anybody asks


class PassInfo(NamedTuple):
    """What a trace records of a pass."""

    refresh: jax.Array  # [B] bool: all of the answer's keys and values were computed anew
    needed: jax.Array  # [B] int32: positions that the row had recomputed; 0 if it took no part
    width: jax.Array  # [B] int32: positions that were computed for it


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
          sizes: how many hidden states are wanted, and whose attention.
          rows: at least one live row must take part. Of a row at a start `sizes.window` positions are
            predicted, or what is left of the answer.
          memory: what the last call returned.
        """
        ...


TOGETHER = setting(
    default=None,
    kind=int,
    low=0,
    doc="positions that a pass computes at once, of as many rows as that makes: by default what keeps the "
    "processor busy; 0: all rows, for batches that are sharded",
)


@policy
class NoCache:
    """Every pass is a full one."""

    together: int | None = TOGETHER

    def init(self, model: DiffusionLM, batch: int, length: int) -> None:
        """Nothing is kept."""
        return None

    def __call__(
        self, model: DiffusionLM, state: DecodeState, sizes: Sizes, rows: Rows, memory: None
    ) -> tuple[Pass, None, PassInfo]:
        """A full pass for every live row."""
        spans = Spans(rows.live, jnp.zeros_like(state.length), state.length)
        widths = self.widths(model, sizes, *state.tokens.shape)
        told, _, width = run_spans(model, state, spans, sizes.window, None, widths, sizes.watch)
        needed = jnp.where(rows.live, state.length, 0)
        done = Pass(rows.live, told.hidden, state.answer_end, told.attention)
        return done, None, PassInfo(rows.live, needed, width)

    def widths(self, model: DiffusionLM, sizes: Sizes, batch: int, canvas: int) -> Widths:
        """What its passes are compiled for."""
        return _plan(canvas_widths(sizes, batch, canvas), model, batch, canvas, self.together)


class BlockMemory(NamedTuple):
    """What a cache keeps."""

    kv: Any  # the model's keys and values
    passes: jax.Array  # [B] int32: passes since the row's last refresh, it included
    # These are kept where a setting asks for them.
    refreshes: jax.Array  # [B] int32: how many there were
    open: jax.Array  # [B] int32: positions that were open at the last one


@policy
class BlockCache:
    """Fast-dLLM's caches: a full pass at each block start, spans around the block between them.

    The defaults of `margin`, `refresh_after` and `prompt_every` are the paper's caches.
    """

    keep_suffix: ClassVar[bool]
    """Whether what follows the block keeps its keys and values too."""
    margin_after = 0  # as a dual cache sets it
    margin: int = setting(default=0, low=0, doc="positions before the block that each pass recomputes too")
    refresh_every: int | jax.Array = setting(
        default=0, low=0, static=False, doc="a full pass also after this many passes inside a block; 0: never"
    )
    refresh_after: int = setting(
        default=0, low=0, doc="a full pass after this many commits, not at each block start; 0: at each"
    )
    prompt_every: int = setting(
        default=1, low=1, doc="each n-th full pass recomputes the prompt, the others the answer alone"
    )
    quorum: Number = setting(
        default=0.0, low=0, high=1, doc="a full pass waits until this share of live rows is due; 0: no wait"
    )
    together: int | None = TOGETHER

    def init(self, model: DiffusionLM, batch: int, length: int) -> BlockMemory:
        """Room for the keys and values of the whole canvas."""
        zeros = jnp.zeros(batch, jnp.int32)
        return BlockMemory(model.init_cache(batch, length), zeros, zeros, zeros)

    def __call__(
        self, model: DiffusionLM, state: DecodeState, sizes: Sizes, rows: Rows, memory: BlockMemory
    ) -> tuple[Pass, BlockMemory, PassInfo]:
        """A full pass for the rows that refresh, spans for the others; rows that are due may wait."""
        still_open = jnp.sum(state.open, axis=1, dtype=jnp.int32)
        due = self._is_due(rows, memory, still_open)
        # Whatever the value, also one that is no number: if all are due, all run.
        wanted = jnp.minimum(self.quorum, 1.0) * jnp.sum(rows.live, dtype=jnp.float32)
        refresh = due & ~(jnp.sum(due, dtype=jnp.float32) < wanted)
        active = refresh | (rows.live & ~due)
        spans, end = self._spans(state, sizes, rows, memory, active, refresh)
        widths = self.widths(model, sizes, *state.tokens.shape)
        told, kv, width = run_spans(model, state, spans, sizes.window, memory.kv, widths, sizes.watch)
        memory = memory._replace(
            kv=kv, passes=jnp.where(refresh, 1, memory.passes + active.astype(jnp.int32))
        )
        if self.refresh_after or self.prompt_every > 1:
            memory = memory._replace(
                refreshes=memory.refreshes + refresh.astype(jnp.int32),
                open=jnp.where(refresh, still_open, memory.open),
            )
        needed = jnp.where(active, spans.end - spans.begin, 0)
        done = Pass(active, told.hidden, end, told.attention)
        return done, memory, PassInfo(refresh, needed, width)

    def _is_due(self, rows: Rows, memory: BlockMemory, still_open: jax.Array) -> jax.Array:
        """[B] live rows that want a refresh."""
        stale = (self.refresh_every > 0) & (memory.passes >= self.refresh_every)
        if self.refresh_after:
            committed = memory.open - still_open
            stale |= (memory.refreshes == 0) | (committed >= self.refresh_after)
        else:
            stale |= rows.at_start
        return rows.live & stale

    def _spans(
        self,
        state: DecodeState,
        sizes: Sizes,
        rows: Rows,
        memory: BlockMemory,
        active: jax.Array,
        refresh: jax.Array,
    ) -> tuple[Spans, jax.Array]:
        """What each row has recomputed, and how far it is predicted [B].

        What a setting leaves alone is not in the program.
        """
        end = state.answer_end
        if self.keep_suffix:
            near = state.block_end
            if self.refresh_after:
                near = jnp.where(rows.at_start, jnp.minimum(state.block_start + sizes.window, end), near)
            end = jnp.where(refresh, end, near)
        whole, begin, stop = refresh, state.block_start, end
        if self.prompt_every > 1:
            whole &= memory.refreshes % self.prompt_every == 0
            begin = jnp.where(refresh, state.answer_start, begin)
        if self.margin:
            begin = jnp.maximum(begin - self.margin, 0)
        if self.margin_after:
            beyond = min(self.margin_after, state.tokens.shape[1])  # the sum is one of 32 bits
            stop = jnp.minimum(stop + beyond, state.length)
        return Spans(active, jnp.where(whole, 0, begin), jnp.where(whole, state.length, stop)), end

    def widths(self, model: DiffusionLM, sizes: Sizes, batch: int, canvas: int) -> Widths:
        """What its passes are compiled for."""
        spans = block_widths(sizes) if self.keep_suffix else suffix_widths(sizes)
        if self.prompt_every > 1:
            spans = (*spans, sizes.gen_length)
        if self.refresh_after:
            spans = (*spans, min(sizes.window, sizes.gen_length))
        beside = max(self.margin, int(model.config.predicts_next)) + self.margin_after
        wanted = (*(span + beside for span in spans), *canvas_widths(sizes, batch, canvas))
        return _plan(wanted, model, batch, canvas, self.together)


@policy
class PrefixCache(BlockCache):
    """Fast-dLLM's prefix cache: between full passes, the block and the rest of the answer are recomputed."""

    keep_suffix = False


@policy
class DualCache(BlockCache):
    """Fast-dLLM's dual cache: between full passes, only the block is recomputed."""

    keep_suffix = True
    margin_after: int = setting(
        default=0, low=0, doc="positions after the block that each pass recomputes too"
    )


def block_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for blocks: up to three, in equal ratios from the narrowest to the longest one."""
    narrowest = min(max(_NARROWEST, sizes.shortest), sizes.longest)
    middle = _STEP * math.ceil(math.sqrt(narrowest * sizes.longest) / _STEP)
    return tuple(sorted({narrowest, min(middle, sizes.longest), sizes.longest}))


def suffix_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for what is left of an answer: its sixths, rounded up to `_STEP`."""
    step = _STEP * math.ceil(sizes.gen_length / (6 * _STEP))
    return (*range(step, sizes.gen_length, step), sizes.gen_length)


def canvas_widths(sizes: Sizes, batch: int, canvas: int) -> tuple[int, ...]:
    """The width of full passes for rows whose prompt is short; a row alone brings a canvas that fits."""
    prompt = canvas - sizes.gen_length
    return (sizes.gen_length + _STEP * math.ceil(prompt / (2 * _STEP)),) if batch > 1 else ()


def _plan(
    wanted: tuple[int, ...], model: DiffusionLM, batch: int, canvas: int, together: int | None
) -> Widths:
    return Widths.plan(wanted, batch, canvas, busy(model) if together is None else together)
