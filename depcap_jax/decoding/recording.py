"""A decode that is recorded while it runs: the loop, with fixed-shape buffers beside the state.

Each turn tells what it looked at and decided, and what its policies tell of it (`Turn`). The recorder
writes that where the row's pass and the position in the answer say, whatever it is: it knows no policy. A
decode that is not recorded has no part of this in its program.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Reads
from depcap_jax.decoding.loop import decode_step, is_live
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeState, Turn

ALTERNATIVES = 5
"""How many of the most likely tokens are kept of each committed position."""

_READS = Reads(top_k=ALTERNATIVES)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trace:
    """What every pass looked at; what it did is in the `DecodeResult` around it.

    Positions are counted from the answer's start. F is `gen_length`, the most passes that a row can take.
    """

    confidence: jax.Array
    """[B, F, G] float32: the probability of the token that each candidate (open, inside the block) would be
    committed with; 0 where there is no candidate."""
    guess: jax.Array
    """[B, F, G] int32: that token; -1 where there is no candidate."""
    alternatives: jax.Array
    """[B, G, A] int32: the most likely tokens at the last pass that committed the position, best first; -1 if
    none did."""
    alternative_confidence: jax.Array
    """[B, G, A] float32: their probabilities; 0 if no pass committed the position."""
    block_starts: jax.Array
    """[B, N] int32: where each block begins, beside `DecodeResult.block_sizes`; -1 beyond the last one."""
    block_passes: jax.Array
    """[B, N] int32: the pass, from 1, at which it was begun; 0 beyond the last one."""
    partition: Any
    """What the partition told at each pass: its own pytree, each leaf [B, F, ...]."""
    select: Any
    """What the selection told at each pass. Flags over pairs of positions are `PackedFlags`."""
    cache: Any
    """What the cache told at each pass."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedFlags:
    """Flags, eight to a byte along the last axis: 128 x 128 of them at each of 256 passes fill 0.5 MB."""

    bits: jax.Array
    size: int = dataclasses.field(metadata={"static": True})
    """Flags along the last axis."""

    def unpack(self) -> np.ndarray:
        """The flags themselves, on the host."""
        return np.unpackbits(np.asarray(self.bits), axis=-1, count=self.size).astype(bool)


def decode_traced(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> tuple[DecodeState, Trace]:
    """`decode`, and what each of its passes looked at: the same tokens and counts.

    It holds 8 bytes for each pass and position, and what the policies tell: for DepCap at the paper's
    lengths about 1.5 MB per row.
    """

    model = model.on_canvas(state.tokens.shape[1])

    def step(carry: tuple[DecodeState, Trace]) -> tuple[DecodeState, Trace]:
        before, trace = carry
        after, turn = decode_step(model, before, config, reads=_READS)
        return after, _write(trace, turn, before, after)

    return lax.while_loop(
        lambda carry: jnp.any(is_live(model, carry[0], config)), step, (state, _empty(model, state, config))
    )


def _empty(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> Trace:
    batch, length, num_blocks = len(state.tokens), config.gen_length, state.block_sizes.shape[1]
    turn = jax.eval_shape(lambda: decode_step(model, state, config, reads=_READS)[1])
    assert turn.prediction.top is not None
    kept = (batch, length, turn.prediction.top.ids.shape[-1])

    def per_pass(info: Any) -> Any:
        shapes = jax.eval_shape(_pack, info)
        return jax.tree.map(lambda leaf: jnp.zeros((batch, length, *leaf.shape[1:]), leaf.dtype), shapes)

    nothing = Trace(
        confidence=jnp.zeros((batch, length, length), jnp.float32),
        guess=jnp.full((batch, length, length), -1, jnp.int32),
        alternatives=jnp.full(kept, -1, jnp.int32),
        alternative_confidence=jnp.zeros(kept, jnp.float32),
        block_starts=jnp.full((batch, num_blocks), -1, jnp.int32),
        block_passes=jnp.zeros((batch, num_blocks), jnp.int32),
        partition=per_pass(turn.partition),
        select=per_pass(turn.select),
        cache=per_pass(turn.cache),
    )
    return numerics.vary_like(nothing, state)


def _write(trace: Trace, turn: Turn, before: DecodeState, after: DecodeState) -> Trace:
    """Puts what a turn told in its place: the row's pass, the position in the answer, the block."""
    batch, length, longest = trace.guess.shape[0], trace.guess.shape[2], turn.candidates.shape[1]
    row = jnp.arange(batch, dtype=jnp.int32)
    position = turn.start[:, None] + jnp.arange(longest, dtype=jnp.int32)[None]
    # An index out of range is dropped: of rows that take no part, and where there is no candidate.
    step = jnp.where(turn.active, before.nfe, length)
    at_pass = (row[:, None], step[:, None], jnp.where(turn.candidates, position, length))
    at_position = (row[:, None], jnp.where(turn.taken, position, length))
    at_block = (row, jnp.where(turn.asked, before.num_blocks, trace.block_starts.shape[1]))
    top: Any = turn.prediction.top

    def per_pass(old: Any, info: Any) -> Any:
        return jax.tree.map(lambda o, n: o.at[row, step].set(n, mode="drop"), old, _pack(info))

    return Trace(
        confidence=trace.confidence.at[at_pass].set(jnp.exp(turn.prediction.log_confidence), mode="drop"),
        guess=trace.guess.at[at_pass].set(turn.prediction.token, mode="drop"),
        alternatives=trace.alternatives.at[at_position].set(top.ids, mode="drop"),
        alternative_confidence=trace.alternative_confidence.at[at_position].set(
            jnp.exp(top.log_p), mode="drop"
        ),
        block_starts=trace.block_starts.at[at_block].set(turn.start, mode="drop"),
        block_passes=trace.block_passes.at[at_block].set(after.nfe, mode="drop"),
        partition=per_pass(trace.partition, turn.partition),
        select=per_pass(trace.select, turn.select),
        cache=per_pass(trace.cache, turn.cache),
    )


def _pack(info: Any) -> Any:
    """Flags over more than one axis beside the batch become `PackedFlags`; the rest stays."""

    def pack(leaf: jax.Array) -> Any:
        if leaf.dtype != bool or leaf.ndim < 3:
            return leaf
        return PackedFlags(jnp.packbits(leaf, axis=-1), leaf.shape[-1])

    return jax.tree.map(pack, info)
