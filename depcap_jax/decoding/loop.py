"""The loop. Each turn: a forward pass; rows at a block start choose a length; selection; commit.

    state = init_state(model, tokens, open, lengths, config)
    while any row is live:                        # decode: lax.while_loop
        hidden     = cache(...)                   # caching.py: which spans; compute/spans.py: the pass
        prediction = the head, a tile at a time   # compute/prediction.py
        length     = partition(prediction)        # partition.py, for rows at a block start
        take       = select(prediction), and the most confident position   # select.py
        commit

Every shape is fixed; a row's tokens and counts never depend on its neighbours. Each turn commits at least
one token in every row that takes part, and more than it takes back, and at least one row does, so the loop
ends. The loop threads what the policies remember and what they tell, and knows neither.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.caching import Pass, Rows
from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.attention import Attention, Watch, watch_for
from depcap_jax.decoding.compute.prediction import Draw, Glance, Prediction, Reads, read_head, read_pairs
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.policy import checked, in_three
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.select import as_change, fewer
from depcap_jax.decoding.state import DecodeResult, DecodeState, Status, Turn, window_at


def init_state(
    model: DiffusionLM,
    tokens: jax.Array,
    open_: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    *,
    key: jax.Array | None = None,
) -> DecodeState:
    """The state before the first turn.

    Args:
      model: what predicts.
      tokens: [B, T] int32 the canvas; what stands at open positions does not matter.
      open_: [B, T] bool the positions to decode; from the first to the last of a row at most
        `config.gen_length` of them.
      lengths: [B] int32 positions from here on are padding.
      config: how to decode.
      key: [B] keys, one per row, or None without sampling.

    Raises:
      ValueError: if the decoder samples and there is no key.
    """
    if config.sampling is not None and key is None:
        raise ValueError("sampling needs a key for each row, such as jax.random.split(jax.random.key(0), B)")
    chex.assert_rank([tokens, lengths], [2, 1])
    chex.assert_equal_shape([tokens, open_])
    chex.assert_equal_shape_prefix([tokens, lengths], 1)
    tokens, lengths = numerics.as_int32(tokens), numerics.as_int32(lengths)
    batch, canvas = tokens.shape
    zeros = jnp.zeros(batch, jnp.int32)
    position = jnp.arange(canvas, dtype=jnp.int32)[None]
    open_ = open_ & (position < lengths[:, None])
    start = numerics.first(open_)
    most_blocks = -(-config.gen_length // config.sizes.shortest)
    state = DecodeState(
        tokens=jnp.where(open_, model.config.mask_token_id, tokens),
        open=open_,
        block_start=start,
        block_end=start,
        partition=config.partition.init(batch, config.gen_length),
        select=config.select.init(batch, config.gen_length),
        cache=config.cache.init(model, batch, canvas),
        status=zeros + int(Status.OK),
        answer_start=start,
        answer_end=jnp.max(jnp.where(open_, position + 1, 0), axis=1),
        length=lengths,
        key=key,
        nfe=zeros,
        num_blocks=zeros,
        commit_step=jnp.zeros((batch, canvas), jnp.int32),
        block_sizes=jnp.zeros((batch, config.gen_length if _slides(config) else most_blocks), jnp.int32),
    )
    return numerics.vary_like(state, model, tokens, open_, lengths, config, key)


def is_live(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> jax.Array:
    """[B] rows that still have something to decode."""
    live = jnp.any(state.open, axis=1) & (state.status == int(Status.OK))
    if config.stop_at_eos:
        position, first = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None], numerics.first(state.open)
        if getattr(config.select, "revokes", False):  # in a block that is not done, nothing is settled
            first = jnp.where(first < state.block_end, state.block_start, first)
        settled = (position < first[:, None]) & (state.commit_step > 0)
        live &= ~jnp.any(settled & _is_eos(model, state.tokens), axis=1)  # a prompt's own ends nothing
    return live


def decode_step(
    model: DiffusionLM, state: DecodeState, config: DecodeConfig, *, reads: Reads | None = None
) -> tuple[DecodeState, Turn]:
    """One turn: at most one forward pass, and at least one commit in every row that takes part.

    Pure: jit it. To change rows for others between turns, see `swap_rows`.

    Args:
      model: what predicts.
      state: where the decode stands.
      config: how to decode.
      reads: what the caller wants to find in `Turn.prediction`; by default what the selection reads.

    Returns:
      The new state, and what the turn looked at and decided.
    """
    live = is_live(model, state, config)
    first = numerics.first(state.open)
    at_start = live & (first >= state.block_end)
    moves = live if _slides(config) else at_start
    state = dataclasses.replace(state, block_start=jnp.where(moves, first, state.block_start))
    sizes = config.sizes._replace(watch=_watch(model, config, reads))
    passed, memory, cache_info = config.cache(model, state, sizes, Rows(live, at_start), state.cache)
    if sizes.watch.layers and passed.attention is None:
        raise ValueError(
            f"{sizes.watch.reader} reads attention, which {type(config.cache).__name__} leaves out"
        )
    state = dataclasses.replace(state, cache=memory)

    asked = moves & passed.active
    glance = _plan_reading(state, config, passed, asked, reads)
    position = state.block_start[:, None] + jnp.arange(sizes.window, dtype=jnp.int32)[None]
    draw = Draw(state.key, state.nfe)
    near, watched, ahead = read_head(
        model, passed.hidden, position, glance, sampling=config.sampling, draw=draw
    )
    block_end, partition, partition_info = _choose_lengths(model, state, config, passed, asked, ahead)

    longest = sizes.longest
    block, watched = jax.tree.map(lambda leaf: leaf[:, :longest], (near, watched))
    inside = (position[:, :longest] < block_end[:, None]) & passed.active[:, None]
    candidates = window_at(state.open, state.block_start, longest, False) & inside
    if glance.select.pairs:
        count = jnp.where(passed.active, block_end - state.block_start, 0)
        block = block._replace(pairs=read_pairs(model, passed.hidden[:, :longest], block, count))
    block = _attending(model, block, glance.select, state, passed, inside)
    watched = _attending(model, watched, glance.watch, state, passed, inside)
    start = state.block_start - state.answer_start
    answer = config.select(block, candidates, start, state.select)
    decision, select, select_info = in_three(config.select, answer)
    take, revoke = as_change(config.select, decision, candidates.shape)
    # A candidate of probability 0 still comes before what is no candidate.
    least = jnp.finfo(jnp.float32).min
    log_c = jnp.where(candidates, jnp.maximum(block.log_confidence, least), -jnp.inf)
    best = jnp.arange(longest, dtype=jnp.int32)[None] == numerics.argmax(log_c)[:, None]
    finite = jnp.all(jnp.isfinite(block.summary.peak) | ~candidates, axis=1)
    if getattr(config.select, "exact", False):
        best &= ~jnp.any(take & candidates, axis=1, keepdims=True)
    take = candidates & (take | best) & finite[:, None]
    committed = window_at(state.commit_step, state.block_start, longest, 0) > 0
    revoke = fewer(revoke & inside & finite[:, None] & (committed | take), than=take)

    state = dataclasses.replace(
        state,
        block_end=block_end,
        partition=partition,
        select=_where_rows(passed.active, select, state.select),
        status=jnp.where(finite, state.status, int(Status.NON_FINITE)),
    )
    infos = (partition_info, jax.tree.map(jnp.asarray, select_info), jax.tree.map(jnp.asarray, cache_info))
    changes = (take & ~revoke, revoke & ~take)
    turn = Turn(passed.active, asked, start, glance.reach, watched, candidates, *changes, *infos)
    return _commit(model, state, turn), turn


def decode(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> DecodeState:
    """Turns until no row is live."""
    model = model.on_canvas(state.tokens.shape[1])
    return lax.while_loop(
        lambda state: jnp.any(is_live(model, state, config)),
        lambda state: decode_step(model, state, config)[0],
        state,
    )


def finish(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> DecodeResult:
    """Reads the answers off a state: [answer_start, answer_start + gen_length) of each row."""
    gen_length, pad = config.gen_length, model.config.pad_token_id
    tokens = window_at(state.tokens, state.answer_start, gen_length, pad)
    commit_step = window_at(state.commit_step, state.answer_start, gen_length, 0)
    ends = (commit_step > 0) & _is_eos(model, tokens)
    answer = jnp.minimum(jnp.maximum(state.answer_end - state.answer_start, 0), gen_length)
    still_open = window_at(state.open, state.answer_start, gen_length, False)
    visible = jnp.minimum(answer, numerics.first(ends | still_open))
    index = jnp.arange(gen_length, dtype=jnp.int32)[None]
    hidden = still_open | (index >= answer[:, None])
    if config.stop_at_eos:
        hidden |= (index > visible[:, None]) & (commit_step > 0)  # what was given stays
    return DecodeResult(
        tokens=jnp.where(hidden, pad, tokens),
        lengths=visible,
        nfe=state.nfe,
        block_sizes=state.block_sizes,
        commit_step=commit_step,
        status=state.status,
    )


def swap_rows(state: DecodeState, rows: jax.Array, fresh: DecodeState) -> DecodeState:
    """`state` with the rows [B] bool taken from `fresh`, a state of the same shapes."""
    return _where_rows(rows, fresh, state)


def _plan_reading(
    state: DecodeState, config: DecodeConfig, passed: Pass, asked: jax.Array, reads: Reads | None
) -> Glance:
    """No more positions than a row looks at: its block, or the window ahead if it asks the partition."""
    reach = jnp.where(asked, passed.end, state.block_end) - state.block_start
    select = _reads(config.select)
    return Glance(
        asked=asked,
        reach=jnp.minimum(jnp.where(passed.active, reach, 0), config.sizes.window),
        select=select,
        watch=select if reads is None else reads,
        partition=_reads(config.partition),
    )


def _watch(model: DiffusionLM, config: DecodeConfig, reads: Reads | None) -> Watch:
    """Whose attention a pass tells: nobody's, unless a policy or the caller reads it."""
    window = config.partition.lengths(config.gen_length).window
    block = config.sizes.longest
    return watch_for(
        model,
        Watch(_reads(config.partition).attention, window, type(config.partition).__name__),
        Watch(_reads(config.select).attention, block, type(config.select).__name__),
        Watch(0 if reads is None else reads.attention, block, "the caller of decode_step"),
    )


def _attending(
    model: DiffusionLM, prediction: Prediction, reads: Reads, state: DecodeState, passed: Pass, inside: Any
) -> Prediction:
    """With what the positions `inside` [B, W] of the window look at, if that is read."""
    if not reads.attention or passed.attention is None:
        return prediction
    attention = Attention.of(model, passed.attention, state.open, state.block_start, inside)
    return prediction._replace(attention=attention)


def _choose_lengths(
    model: DiffusionLM, state: DecodeState, config: DecodeConfig, passed: Pass, asked: Any, ahead: Prediction
) -> tuple[jax.Array, Any, Any]:
    """The blocks' ends [B], the partition's memory, and what it tells: new for the rows that asked."""
    window, reads = config.partition.lengths(config.gen_length).window, _reads(config.partition)
    ahead = jax.tree.map(lambda leaf: leaf[:, :window], ahead)
    ahead = ahead._replace(open=window_at(state.open, state.block_start, window, False))
    remaining = jnp.maximum(passed.end - state.block_start, 1)
    if reads.attention:
        inside = jnp.arange(window, dtype=jnp.int32)[None] < remaining[:, None]
        ahead = _attending(model, ahead, reads, state, passed, inside)

    def ask() -> tuple[jax.Array, Any, Any]:
        start = state.block_start - state.answer_start
        answer = config.partition(ahead, start, remaining, state.partition)
        length, memory, info = in_three(config.partition, answer)
        length = checked(config.partition, length, jnp.integer, remaining.shape)
        # Whatever a policy says, a block has a position and no more than fit, so that the loop ends.
        most = jnp.minimum(remaining, config.sizes.longest)
        end = state.block_start + jnp.clip(numerics.as_int32(length), 1, most)
        return end, memory, jax.tree.map(jnp.asarray, info)

    end, memory, info = numerics.if_any(asked, ask)
    return (
        jnp.where(asked, end, state.block_end),
        _where_rows(asked, memory, state.partition),
        _where_rows(asked, info, jax.tree.map(jnp.zeros_like, info)),
    )


def _commit(model: DiffusionLM, state: DecodeState, turn: Turn) -> DecodeState:
    """Writes what was taken, opens what was revoked, and counts."""
    canvas = jnp.arange(state.tokens.shape[1], dtype=jnp.int32)[None]
    offset = jnp.broadcast_to(canvas - state.block_start[:, None], state.tokens.shape)
    reachable = (offset >= 0) & (offset < turn.taken.shape[1])
    offset = jnp.clip(offset, 0, turn.taken.shape[1] - 1)
    taken, revoked = (reachable & numerics.take(x, offset) for x in (turn.taken, turn.revoked))
    tokens = jnp.where(revoked, model.config.mask_token_id, state.tokens)
    nfe = state.nfe + turn.active.astype(jnp.int32)
    slot = jnp.arange(state.block_sizes.shape[1], dtype=jnp.int32)[None] == state.num_blocks[:, None]
    size = (state.block_end - state.block_start)[:, None]
    return dataclasses.replace(
        state,
        tokens=jnp.where(taken, numerics.take(turn.prediction.token, offset), tokens),
        open=(state.open | revoked) & ~taken,
        nfe=nfe,
        num_blocks=state.num_blocks + turn.asked.astype(jnp.int32),
        commit_step=jnp.where(taken, nfe[:, None], jnp.where(revoked, 0, state.commit_step)),
        block_sizes=jnp.where(slot & turn.asked[:, None], size, state.block_sizes),
    )


def _reads(policy: Any) -> Reads:
    return getattr(policy, "reads", Reads())


def _slides(config: DecodeConfig) -> bool:
    return getattr(config.partition, "slides", False)


def _where_rows(rows: jax.Array, new: Any, old: Any) -> Any:
    """A pytree with the rows [B] of `new` and otherwise those of `old`, with the dtypes of `old`."""

    def choose(n: jax.Array, o: jax.Array) -> jax.Array:
        return jnp.where(rows.reshape(-1, *[1] * (o.ndim - 1)), n.astype(o.dtype), o)

    return jax.tree.map(choose, new, old)


def _is_eos(model: DiffusionLM, tokens: jax.Array) -> jax.Array:
    ends = jnp.asarray(model.config.eos_token_ids, jnp.int32).reshape(*[1] * tokens.ndim, -1)
    return jnp.any(tokens[..., None] == ends, axis=-1)
