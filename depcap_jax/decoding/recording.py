"""A decode that is recorded while it runs: the loop of `decode`, with fixed-shape buffers beside the state.

The recorder looks at the very numbers that each turn decides on and writes them where the row's pass and
the position in the answer say; a decode that is not recorded has no part of this in its program.
Axis letters: B rows, G answer positions, F forward passes, W window positions, L positions of the longest
block, N blocks, A alternatives.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding import numerics
from depcap_jax.decoding.loop import Turn, is_live, observed_step
from depcap_jax.decoding.partition import DepGABlocks, Signals
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.select import ConflictFree
from depcap_jax.decoding.state import DecodeState, DiffusionLM, Trace, window_at

ALTERNATIVES = 5
"""How many of the most likely tokens are kept of each committed position."""


class _Seen(NamedTuple):
    """What one turn saw of the `longest` positions from each block's start."""

    confidence: jax.Array  # [B, L] float32, NaN where there is no candidate
    guess: jax.Array  # [B, L] int32, -1 where there is no candidate
    alternatives: jax.Array  # [B, L, A] int32
    alternative_confidence: jax.Array  # [B, L, A] float32
    signals: Signals | None  # [B, W] each
    conflicts: jax.Array | None  # [B, L, ceil(L / 8)] uint8


def decode_traced(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> tuple[DecodeState, Trace]:
    """`decode`, and what each of its passes saw: the same tokens and counts, by the same program.

    It holds 8 bytes for each pass and position, and with `ConflictFree` one bit for each pass and pair of
    positions of a block: about 1 MB a row at the paper's lengths.
    """
    observe = functools.partial(_observe, config)

    def turn(carry: tuple[DecodeState, Trace]) -> tuple[DecodeState, Trace]:
        before, trace = carry
        after, seen = observed_step(model, before, config, observe)
        return after, _write(trace, seen, before, after)

    return lax.while_loop(
        lambda carry: jnp.any(is_live(model, carry[0], config)), turn, (state, _empty(state, config))
    )


def _empty(state: DecodeState, config: DecodeConfig) -> Trace:
    batch, length, longest = state.tokens.shape[0], config.gen_length, config.sizes.longest
    num_blocks = state.block_sizes.shape[1]
    passes, kept = (batch, length, length), (batch, length, ALTERNATIVES)
    signals = None
    if isinstance(config.partition, DepGABlocks):
        window = (batch, num_blocks, min(config.partition.l_max, length))
        signals = Signals(*(jnp.full(window, jnp.nan, jnp.float32) for _ in Signals._fields))
    conflicts = None
    if isinstance(config.select, ConflictFree):
        conflicts = jnp.zeros((batch, length, longest, -(-longest // 8)), jnp.uint8)
    return Trace(
        confidence=jnp.full(passes, jnp.nan, jnp.float32),
        guess=jnp.full(passes, -1, jnp.int32),
        alternatives=jnp.full(kept, -1, jnp.int32),
        alternative_confidence=jnp.full(kept, jnp.nan, jnp.float32),
        block_starts=jnp.full((batch, num_blocks), -1, jnp.int32),
        block_passes=jnp.zeros((batch, num_blocks), jnp.int32),
        signals=signals,
        conflicts=conflicts,
    )


def _observe(config: DecodeConfig, state: DecodeState, turn: Turn) -> _Seen:
    """Brings what a turn saw to fixed shapes: that of the longest block, and that of the signals' window."""
    longest = config.sizes.longest
    prediction, candidates = turn.prediction, turn.candidates
    ids = numerics.top_k(prediction.logits, min(ALTERNATIVES, prediction.logits.shape[-1]))[1]
    logit = jnp.take_along_axis(prediction.logits, ids, axis=-1)
    summary = numerics.Summary(*(field[..., None] for field in prediction.summary))
    conflicts = None
    if isinstance(config.select, ConflictFree):
        graph = config.select.graph(prediction, candidates)
        edges = graph.conflict & graph.pool[:, :, None] & graph.pool[:, None, :]
        conflicts = jnp.packbits(_fit(edges, (longest, longest), False), axis=-1)
    return _Seen(
        confidence=_fit(
            jnp.where(candidates, jnp.exp(prediction.log_confidence), jnp.nan), (longest,), jnp.nan
        ),
        guess=_fit(jnp.where(candidates, prediction.token, -1), (longest,), -1),
        alternatives=_fit(ids, (longest, ALTERNATIVES), -1),
        alternative_confidence=_fit(jnp.exp(summary.log_prob(logit)), (longest, ALTERNATIVES), jnp.nan),
        signals=_signals(config, state, turn),
        conflicts=conflicts,
    )


def _signals(config: DecodeConfig, state: DecodeState, turn: Turn) -> Signals | None:
    """DepGA's signals as the rule itself computes them, NaN where it does not look at them."""
    rule = config.partition
    if not isinstance(rule, DepGABlocks):
        return None
    width = min(rule.l_max, config.gen_length)
    if turn.remaining is None:
        nothing = jnp.full((state.tokens.shape[0], width), jnp.nan, jnp.float32)
        return Signals(nothing, nothing, nothing)
    current = numerics.compress(turn.prediction.logits, turn.prediction.summary, rule.top_k_cache)
    found = rule.signals(turn.prediction, current, state.block_start, turn.remaining, turn.memory)
    inside = jnp.arange(found.score.shape[-1]) < jnp.minimum(turn.remaining, rule.l_max)[:, None]
    known = inside & turn.memory.seen[:, None]  # before the first block there is no influence

    def kept(x: jax.Array, where: jax.Array) -> jax.Array:
        return _fit(jnp.where(where, x, jnp.nan), (width,), jnp.nan)

    return Signals(kept(found.influence, known), kept(found.uncertainty, inside), kept(found.score, known))


def _write(trace: Trace, seen: _Seen, before: DecodeState, after: DecodeState) -> Trace:
    """Puts what was seen in its place: the row's pass, the position in the answer, the block."""
    length, longest = trace.guess.shape[2], seen.guess.shape[1]
    row = jnp.arange(trace.guess.shape[0])
    first = after.block_start - after.answer_start
    position = first[:, None] + jnp.arange(longest)
    # An index out of range is dropped: of rows that wait, and where there is no candidate.
    step = jnp.where(after.nfe > before.nfe, before.nfe, length)
    at_pass = (row[:, None], step[:, None], jnp.where(seen.guess >= 0, position, length))
    committed = window_at(before.open & ~after.open, after.block_start, longest, False)
    at_position = (row[:, None], jnp.where(committed, position, length))
    opened = after.num_blocks > before.num_blocks
    at_block = (row, jnp.where(opened, before.num_blocks, trace.block_starts.shape[1]))
    signals, conflicts = trace.signals, trace.conflicts
    if signals is not None:
        pairs = zip(signals, seen.signals or (), strict=True)
        signals = Signals(*(old.at[at_block].set(new, mode="drop") for old, new in pairs))
    if conflicts is not None:
        conflicts = conflicts.at[row, step].set(seen.conflicts, mode="drop")
    return Trace(
        confidence=trace.confidence.at[at_pass].set(seen.confidence, mode="drop"),
        guess=trace.guess.at[at_pass].set(seen.guess, mode="drop"),
        alternatives=trace.alternatives.at[at_position].set(seen.alternatives, mode="drop"),
        alternative_confidence=trace.alternative_confidence.at[at_position].set(
            seen.alternative_confidence, mode="drop"
        ),
        block_starts=trace.block_starts.at[at_block].set(first, mode="drop"),
        block_passes=trace.block_passes.at[at_block].set(after.nfe, mode="drop"),
        signals=signals,
        conflicts=conflicts,
    )


def _fit(x: jax.Array, shape: tuple[int, ...], fill: float) -> jax.Array:
    """x [B, ...] cut or padded with `fill` to [B, *shape]."""
    x = x[(slice(None), *(slice(size) for size in shape))]
    grow = [(0, want - have) for have, want in zip(x.shape[1:], shape, strict=True)]
    return jnp.pad(x, [(0, 0), *grow], constant_values=fill)
