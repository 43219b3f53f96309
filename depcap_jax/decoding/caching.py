"""What is recomputed, what is reused? One turn's forward pass, and the keys and values it leaves.

A pass covers the whole canvas (a refresh) or, of each row, the span from its block's start to where the
policy says, at the smallest of a few compiled widths that holds the widest span. Extra positions inside
a width write nothing. Axis letters: B rows, T canvas positions, Q query positions, D width of the model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.policy import check_range, policy, static
from depcap_jax.decoding.state import DecodeState, DiffusionLM

# No pass is compiled for fewer positions: below this its cost is that of reading the weights.
_NARROWEST = 16


class Sizes(NamedTuple):
    """The lengths that shapes depend on."""

    gen_length: int
    shortest: int  # the shortest block, but for an answer's last one
    longest: int  # the longest block
    window: int  # positions looked at from a block's start: at least `longest`


class Plan(NamedTuple):
    """What this turn does with each row."""

    active: jax.Array  # [B] bool: takes part in the pass
    refresh: jax.Array  # [B] bool: all its keys and values are computed anew


class Cache(Protocol):
    """A rule for what to reuse; a frozen dataclass that is a pytree."""

    def init(self, model: DiffusionLM, batch: int, length: int) -> Any:
        """The keys and values before the first pass, or None."""
        ...

    def plan(self, state: DecodeState, live: jax.Array, at_start: jax.Array) -> Plan:
        """Which of the `live` [B] rows take part, given which are `at_start` [B] of a block."""
        ...

    def forward(
        self, model: DiffusionLM, state: DecodeState, plan: Plan, sizes: Sizes
    ) -> tuple[jax.Array, Any]:
        """Hidden states [B, window, D] that predict [block_start, block_start + window), and the new cache.

        Without a refresh only those of the block mean anything.
        """
        ...


@policy
class NoCache:
    """Every pass is a full one."""

    def init(self, model: DiffusionLM, batch: int, length: int) -> None:
        """Nothing is kept."""
        return None

    def plan(self, state: DecodeState, live: jax.Array, at_start: jax.Array) -> Plan:
        """All rows, always."""
        return Plan(active=live, refresh=live)

    def forward(
        self, model: DiffusionLM, state: DecodeState, plan: Plan, sizes: Sizes
    ) -> tuple[jax.Array, None]:
        """One pass over the canvas."""
        hidden, _ = model.hidden(state.tokens, valid=_valid(state))
        return _predicting(model, hidden, state.block_start, 0, sizes.window), None


@policy
class BlockCache:
    """Fast-dLLM's caches: a full pass at each block start, spans from the block's start between them.

    A row that is due for a full pass waits until a `quorum` of the live rows is due (1: all of them), so
    that they share it; waiting costs a row no pass of its own and changes none of its tokens.
    `refresh_every` n > 0 also makes a row due after n passes inside a block; 0 never does.
    """

    keep_suffix: bool = static()
    """Whether what follows the block keeps its keys and values too."""
    quorum: float | jax.Array = 1.0
    refresh_every: int | jax.Array = 0

    def __post_init__(self) -> None:
        check_range("quorum", self.quorum, 0.0, 1.0)
        check_range("refresh_every", self.refresh_every, 0, None)

    def init(self, model: DiffusionLM, batch: int, length: int) -> Any:
        """Room for the keys and values of the whole canvas."""
        return model.init_cache(batch, length)

    def plan(self, state: DecodeState, live: jax.Array, at_start: jax.Array) -> Plan:
        """Rows inside a block step; rows that are due wait for the quorum."""
        stale = (self.refresh_every > 0) & (state.since_refresh >= self.refresh_every)
        due = live & (at_start | stale)
        together = jnp.sum(due) >= self.quorum * jnp.sum(live)
        refresh = due & together
        return Plan(active=refresh | (live & ~due), refresh=refresh)

    def forward(
        self, model: DiffusionLM, state: DecodeState, plan: Plan, sizes: Sizes
    ) -> tuple[jax.Array, Any]:
        """A full pass if any row refreshes, else one over the spans."""
        known, window = (model, state, plan, self._span_end(state)), sizes.window
        branches = [
            functools.partial(_span_pass, *known, width=width, window=window) for width in self.widths(sizes)
        ]
        branches.append(functools.partial(_full_pass, *known, window=window))
        return _switch_in_place(self.choose(state, plan, sizes), branches, state.kv)

    def widths(self, sizes: Sizes) -> tuple[int, ...]:
        """The widths that are compiled for spans."""
        return block_widths(sizes) if self.keep_suffix else suffix_widths(sizes)

    def choose(self, state: DecodeState, plan: Plan, sizes: Sizes) -> jax.Array:
        """Index into `widths` of the narrowest one that holds all spans; one past them for a full pass."""
        widths = self.widths(sizes)
        needed = jnp.max(jnp.where(plan.active, self._span_end(state) - state.block_start, 0))
        return jnp.where(jnp.any(plan.refresh), len(widths), choose_width(widths, needed))

    def _span_end(self, state: DecodeState) -> jax.Array:
        return state.block_end if self.keep_suffix else state.answer_end


@policy
class PrefixCache(BlockCache):
    """Between full passes, the block and all that follows it are recomputed."""

    keep_suffix: bool = static(default=False)


@policy
class DualCache(BlockCache):
    """Between full passes, only the block is recomputed."""

    keep_suffix: bool = static(default=True)


def block_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for blocks: doubling up to the longest one."""
    doubling = [_NARROWEST]
    while doubling[-1] < sizes.longest:
        doubling.append(2 * doubling[-1])
    return (*(width for width in doubling if sizes.shortest <= width < sizes.longest), sizes.longest)


def suffix_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for what is left of an answer: its quarters."""
    return tuple(sorted({-(-sizes.gen_length * quarter // 4) for quarter in (1, 2, 3, 4)}))


def start_widths(sizes: Sizes) -> tuple[int, ...]:
    """The widths compiled for looking ahead at a block's start: the whole window, and half of it."""
    half = -(-sizes.window // 2)
    return (half, sizes.window) if half >= max(sizes.longest // 2, _NARROWEST) else (sizes.window,)


def choose_width(widths: tuple[int, ...], needed: jax.Array) -> jax.Array:
    """Index of the smallest of `widths` that holds `needed`."""
    return jnp.minimum(jnp.sum(jnp.asarray(widths) < needed), len(widths) - 1)


def _switch_in_place(
    index: jax.Array, branches: Sequence[Callable[[Any], tuple[jax.Array, Any]]], kv: Any
) -> tuple[jax.Array, Any]:
    """`lax.switch` for passes that update a cache: each branch is a loop that runs once or not at all.

    XLA copies a buffer that is changed inside a conditional; what a loop carries is changed in place.
    """
    hidden = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(branches[0], kv)[0])
    carry = (index, hidden, kv)
    for number, branch in enumerate(branches):
        carry = lax.while_loop(
            lambda carry, number=number: carry[0] == number,
            lambda carry, branch=branch: (jnp.full_like(carry[0], -1), *branch(carry[2])),
            carry,
        )
    return carry[1:]


def _full_pass(
    model: DiffusionLM, state: DecodeState, plan: Plan, span_end: jax.Array, kv: Any, *, window: int
) -> tuple[jax.Array, Any]:
    """A pass over the canvas; rows that do not refresh still see their old keys outside their span."""
    position = jnp.arange(state.tokens.shape[1])
    write = plan.refresh[:, None] | _in_span(state, plan, span_end, position)
    hidden, kv = model.hidden(state.tokens, valid=_valid(state), cache=kv, write=write)
    return _predicting(model, hidden, state.block_start, 0, window), kv


def _span_pass(
    model: DiffusionLM,
    state: DecodeState,
    plan: Plan,
    span_end: jax.Array,
    kv: Any,
    *,
    width: int,
    window: int,
) -> tuple[jax.Array, Any]:
    """A pass over [block_start, block_start + width) of each row.

    A model that predicts the next position needs the one before the block as a query too; its keys and
    values stay.
    """
    lead, canvas = int(model.config.predicts_next), state.tokens.shape[1]
    size = min(width + lead, canvas)
    start = jnp.clip(state.block_start - lead, 0, canvas - size)  # near an end the span begins earlier
    position = start[:, None] + jnp.arange(size)
    hidden, kv = model.hidden(
        jnp.take_along_axis(state.tokens, position, axis=1),
        valid=_valid(state),
        start=start,
        cache=kv,
        write=_in_span(state, plan, span_end, position),
    )
    kept = _predicting(model, hidden, state.block_start, start, min(width, window))
    return jnp.pad(kept, ((0, 0), (0, window - kept.shape[1]), (0, 0))), kv


def _in_span(state: DecodeState, plan: Plan, span_end: jax.Array, position: jax.Array) -> jax.Array:
    """Which of the positions [Q] or [B, Q] an active row recomputes [B, Q]."""
    inside = (position >= state.block_start[:, None]) & (position < span_end[:, None])
    return inside & plan.active[:, None]


def _predicting(
    model: DiffusionLM, hidden: jax.Array, block_start: jax.Array, first: jax.Array | int, count: int
) -> jax.Array:
    """Of hidden states [B, Q, D] from position `first` on, those that predict `count` from the block's start.

    Position 0 predicts itself, also where the model predicts the next position.
    """
    source = jnp.maximum(block_start[:, None] + jnp.arange(count) - int(model.config.predicts_next), 0)
    index = jnp.minimum(source - jnp.reshape(first, (-1, 1)), hidden.shape[1] - 1)
    return jnp.take_along_axis(hidden, index[..., None], axis=1)


def _valid(state: DecodeState) -> jax.Array:
    """[B, T] what may be attended to: all but the padding."""
    return jnp.arange(state.tokens.shape[1]) < state.length[:, None]
