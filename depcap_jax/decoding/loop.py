"""The loop. Each turn: a forward pass; rows at a block start choose a length; selection; commit.

    state = init_state(model, tokens, open, ...)
    while any row is live:                      # decode: lax.while_loop
        plan       = who takes part             # caching.py
        hidden     = forward pass               # caching.py: full, or the spans
        prediction = head on the window         # sampling.py
        block_end  = partition(prediction)      # partition.py, where a block starts
        take       = select(prediction) + best  # select.py
        commit

Every shape is fixed; a row's tokens and counts never depend on its neighbours. Each turn commits at least
one token in every row that takes part, and at least one row does, so the loop ends.
Axis letters: B rows, T canvas positions, G answer positions, W window positions, D width of the model.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.caching import Plan, Sizes, block_widths, choose_width, start_widths
from depcap_jax.decoding.prediction import predict
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.select import Prediction
from depcap_jax.decoding.state import DecodeResult, DecodeState, DiffusionLM, Status, window_at


class Choice(NamedTuple):
    """What a turn decided about the window [block_start, block_start + W) of each row."""

    token: jax.Array  # [B, W] int32
    take: jax.Array  # [B, W] bool
    finite: jax.Array  # [B] bool: the logits it was decided on are finite
    block_end: jax.Array  # [B] int32
    partition: Any  # the partition's memory
    seen: Any  # what an observer made of it; None without one


class Turn(NamedTuple):
    """What a turn looked at and decided, for an observer."""

    prediction: Prediction  # of the first W positions from each block's start; W differs from turn to turn
    candidates: jax.Array  # [B, W] bool: open, inside the block, and the row takes part
    opening: jax.Array  # [B] bool: rows that open a block
    remaining: jax.Array | None  # [B] positions left in the answer; None on a turn that opens no block
    memory: Any  # what the partition remembered before


Observer = Callable[[DecodeState, Turn], Any]
"""Makes of a turn a pytree whose shapes do not depend on W."""


def init_state(
    model: DiffusionLM,
    config: DecodeConfig,
    tokens: jax.Array,
    open_: jax.Array,
    length: jax.Array,
    *,
    key: jax.Array | None = None,
) -> DecodeState:
    """The state before the first turn.

    Args:
      model: what predicts.
      config: how to decode.
      tokens: [B, T] int32 the canvas; what stands at open positions does not matter.
      open_: [B, T] bool the positions to decode; from the first to the last of a row at most
        `config.gen_length` of them.
      length: [B] int32 positions from here on are padding.
      key: [B] keys, a row each, or None without sampling.
    """
    batch, canvas = tokens.shape
    zeros = jnp.zeros(batch, jnp.int32)
    position = jnp.arange(canvas)
    open_ = open_ & (position < length[:, None])
    start = _first(open_)
    num_blocks = -(-config.gen_length // config.sizes.shortest)
    return DecodeState(
        tokens=jnp.where(open_, model.config.mask_token_id, tokens).astype(jnp.int32),
        open=open_,
        block_start=start,
        block_end=start,
        kv=config.cache.init(model, batch, canvas),
        partition=config.partition.init(batch, config.gen_length),
        status=zeros + Status.OK,
        answer_start=start,
        answer_end=jnp.max(jnp.where(open_, position + 1, 0), axis=1).astype(jnp.int32),
        length=length.astype(jnp.int32),
        key=key,
        nfe=zeros,
        since_refresh=zeros,
        num_blocks=zeros,
        commit_step=jnp.zeros((batch, canvas), jnp.int32),
        block_sizes=jnp.zeros((batch, num_blocks), jnp.int32),
    )


def is_live(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> jax.Array:
    """[B] rows that still have something to decode."""
    live = jnp.any(state.open, axis=1) & (state.status == Status.OK)
    if config.stop_at_eos:
        reached = jnp.arange(state.tokens.shape[1]) < _first(state.open)[:, None]
        settled = reached & (state.commit_step > 0)  # what was given, a prompt say, ends nothing
        live &= ~jnp.any(settled & _is_eos(model, state.tokens), axis=1)
    return live


def plan_turn(
    model: DiffusionLM, state: DecodeState, config: DecodeConfig
) -> tuple[DecodeState, Plan, jax.Array]:
    """Who takes part in the next turn, and which rows open a block [B]; those move to its start."""
    live = is_live(model, state, config)
    first = _first(state.open)
    at_start = live & (first >= state.block_end)
    plan = config.cache.plan(state, live, at_start)
    opening = at_start & plan.active
    return dataclasses.replace(state, block_start=jnp.where(opening, first, state.block_start)), plan, opening


def decode_step(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> DecodeState:
    """One turn: at most one forward pass, and at least one commit in every row that takes part.

    Pure and jittable. A program may drive the loop itself with it: look at every state, and put new rows
    in the place of finished ones with `swap_rows`. Without a live row it changes nothing.
    """
    return observed_step(model, state, config, None)[0]


def observed_step(
    model: DiffusionLM, state: DecodeState, config: DecodeConfig, observe: Observer | None
) -> tuple[DecodeState, Any]:
    """`decode_step`, and what `observe` made of the very numbers that it decided on."""
    state, plan, opening = plan_turn(model, state, config)
    hidden, kv = config.cache.forward(model, state, plan, config.sizes)
    choice = _choose(model, hidden, state, config, plan, opening, observe)
    return _commit(dataclasses.replace(state, kv=kv), choice, plan, opening), choice.seen


def decode(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> DecodeState:
    """Turns until no row is live."""
    return lax.while_loop(
        lambda state: jnp.any(is_live(model, state, config)),
        lambda state: decode_step(model, state, config),
        state,
    )


def finish(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> DecodeResult:
    """Reads the answers off a state: [answer_start, answer_start + gen_length) of each row."""
    gen_length, pad = config.gen_length, model.config.pad_token_id
    tokens = window_at(state.tokens, state.answer_start, gen_length, pad)
    decoded = window_at(state.commit_step, state.answer_start, gen_length, 0) > 0
    ends = decoded & _is_eos(model, tokens)
    answer = jnp.minimum(state.answer_end - state.answer_start, gen_length)
    still_open = window_at(state.open, state.answer_start, gen_length, False)
    lengths = jnp.minimum(
        jnp.where(jnp.any(ends, axis=1), jnp.argmax(ends, axis=1), answer), _first(still_open)
    )
    index = jnp.arange(gen_length)
    hidden = still_open | (index >= answer[:, None])
    if config.stop_at_eos:
        hidden |= index > lengths[:, None]
    return DecodeResult(
        tokens=jnp.where(hidden, pad, tokens),
        lengths=lengths.astype(jnp.int32),
        nfe=state.nfe,
        block_sizes=state.block_sizes,
        commit_step=window_at(state.commit_step, state.answer_start, gen_length, 0),
        status=state.status,
    )


def swap_rows(state: DecodeState, rows: jax.Array, fresh: DecodeState) -> DecodeState:
    """`state` with the rows [B] bool taken from `fresh`, a state of the same shapes."""
    return _where_rows(rows, fresh, state)


def _choose(
    model: DiffusionLM,
    hidden: jax.Array,
    state: DecodeState,
    config: DecodeConfig,
    plan: Plan,
    opening: jax.Array,
    observe: Observer | None,
) -> Choice:
    """Partition and selection, with the head run on no more positions than they look at."""
    branches = [
        functools.partial(_choose_in, width=width, at_start=at_start, observe=observe)
        for width, at_start in head_widths(config.sizes)
    ]
    branch = choose_head_width(state, plan, opening, config.sizes)
    return lax.switch(branch, branches, model, hidden, state, config, plan, opening)


def head_widths(sizes: Sizes) -> tuple[tuple[int, bool], ...]:
    """The widths that the head is compiled for, and whether each serves a turn on which a block opens."""
    steps, starts = block_widths(sizes), start_widths(sizes)
    return (*((width, False) for width in steps), *((width, True) for width in starts))


def choose_head_width(state: DecodeState, plan: Plan, opening: jax.Array, sizes: Sizes) -> jax.Array:
    """Index into `head_widths` of the narrowest one that holds what this turn looks at."""
    steps, starts = block_widths(sizes), start_widths(sizes)
    block = jnp.max(jnp.where(plan.active, state.block_end - state.block_start, 0))
    ahead = jnp.max(jnp.where(plan.active, state.answer_end - state.block_start, 0))
    return jnp.where(jnp.any(opening), len(steps) + choose_width(starts, ahead), choose_width(steps, block))


def _choose_in(
    model: DiffusionLM,
    hidden: jax.Array,
    state: DecodeState,
    config: DecodeConfig,
    plan: Plan,
    opening: jax.Array,
    *,
    width: int,
    at_start: bool,
    observe: Observer | None = None,
) -> Choice:
    """`_choose` on the first `width` positions of the window; rows that open a block partition first."""
    position = state.block_start[:, None] + jnp.arange(width)
    prediction = predict(
        model.logits(hidden[:, :width]),
        model.config.vocab_size,
        model.config.mask_token_id,
        config.sampling,
        state.key,
        state.nfe,
        position,
    )
    block_end, memory, remaining = state.block_end, state.partition, None
    if at_start:
        remaining = jnp.maximum(state.answer_end - state.block_start, 1)
        length, new_memory = config.partition(prediction, state.block_start, remaining, memory)
        block_end = jnp.where(opening, state.block_start + length, block_end)
        memory = _where_rows(opening, new_memory, memory)
    in_block = window_at(state.open, state.block_start, width, False) & (position < block_end[:, None])
    candidates = in_block & plan.active[:, None]
    log_c = jnp.where(candidates, prediction.log_confidence, -jnp.inf)
    best = jnp.arange(width) == jnp.argmax(log_c, axis=1)[:, None]
    take = candidates & (config.select(prediction, candidates) | best)
    finite = jnp.all(jnp.isfinite(prediction.summary.peak) | ~candidates, axis=1)
    grow = ((0, 0), (0, hidden.shape[1] - width))
    seen = None
    if observe is not None:
        seen = observe(state, Turn(prediction, candidates, opening, remaining, state.partition))
    return Choice(jnp.pad(prediction.token, grow), jnp.pad(take, grow), finite, block_end, memory, seen)


def _commit(state: DecodeState, choice: Choice, plan: Plan, opening: jax.Array) -> DecodeState:
    """Writes what was taken, and counts."""
    canvas = jnp.arange(state.tokens.shape[1])
    offset = jnp.broadcast_to(canvas - state.block_start[:, None], state.tokens.shape)
    reachable = (offset >= 0) & (offset < choice.take.shape[1])
    offset = jnp.clip(offset, 0, choice.take.shape[1] - 1)
    taken = reachable & jnp.take_along_axis(choice.take & choice.finite[:, None], offset, axis=1)
    nfe = state.nfe + plan.active
    slot = jnp.arange(state.block_sizes.shape[1]) == state.num_blocks[:, None]
    size = (choice.block_end - state.block_start)[:, None]
    return dataclasses.replace(
        state,
        tokens=jnp.where(taken, jnp.take_along_axis(choice.token, offset, axis=1), state.tokens),
        open=state.open & ~taken,
        block_end=choice.block_end,
        partition=choice.partition,
        status=jnp.where(choice.finite, state.status, Status.NON_FINITE),
        nfe=nfe,
        since_refresh=jnp.where(plan.refresh, 1, state.since_refresh + plan.active),
        num_blocks=state.num_blocks + opening,
        commit_step=jnp.where(taken, nfe[:, None], state.commit_step),
        block_sizes=jnp.where(slot & opening[:, None], size, state.block_sizes),
    )


def _where_rows(rows: jax.Array, new: Any, old: Any) -> Any:
    """A pytree with the rows [B] of `new` and otherwise those of `old`."""
    return jax.tree.map(lambda n, o: jnp.where(rows.reshape(-1, *[1] * (o.ndim - 1)), n, o), new, old)


def _first(flags: jax.Array) -> jax.Array:
    """[B] index of the first True of flags [B, T]; T if there is none."""
    return jnp.where(jnp.any(flags, axis=1), jnp.argmax(flags, axis=1), flags.shape[1]).astype(jnp.int32)


def _is_eos(model: DiffusionLM, tokens: jax.Array) -> jax.Array:
    return jnp.any(tokens[..., None] == jnp.asarray(model.config.eos_token_ids), axis=-1)
