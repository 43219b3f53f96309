"""A decode as it happens: one row, a snapshot after every forward pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.decoding.generate import start
from depcap_jax.decoding.loop import Turn, is_live, observed_step
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeError, DecodeState, DiffusionLM, Status


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """An answer on its way. Axis letter: G answer positions."""

    tokens: np.ndarray
    """[G] int32: ids; the mask id where a position is still open."""
    commit_step: np.ndarray
    """[G] int32: the pass at which each position was committed, from 1; 0 where it is open."""
    confidence: np.ndarray
    """[G] float32: the probability of each token when it was committed; NaN where it is open."""
    block: tuple[int, int]
    """The current block: its first position in the answer, and one past its last."""
    nfe: int
    """Forward passes so far."""


def stream(
    model: DiffusionLM,
    prompt_ids: np.ndarray,
    prompt_length: int,
    *,
    config: DecodeConfig,
    key: jax.Array | None = None,
) -> Iterator[Snapshot]:
    """Decodes one prompt turn by turn, to the same tokens as `generate`.

    Args:
      model: as for `generate`.
      prompt_ids: [P] int32, padded on the right to a width that prompts may share.
      prompt_length: ids of it that count.
      config: how to decode.
      key: one key, for sampling.

    Raises:
      DecodeError: if the row does not end well; what was decoded until then has been told.
    """
    keys = None if key is None or config.sampling is None else key[None]
    state, live = _begin(model, jnp.asarray(prompt_ids)[None], jnp.array([prompt_length]), config, keys)
    confidence = np.full(config.gen_length, np.nan, np.float32)
    while bool(live):
        state, live, seen = _turn(model, state, config)
        tokens, steps = (
            np.asarray(x[0])[prompt_length : prompt_length + config.gen_length]
            for x in (state.tokens, state.commit_step)
        )
        block = (int(state.block_start[0]) - prompt_length, int(state.block_end[0]) - prompt_length)
        nfe = int(state.nfe[0])
        fresh = np.flatnonzero(steps == nfe)
        confidence = confidence.copy()
        confidence[fresh] = np.asarray(seen[0])[fresh - block[0]]
        yield Snapshot(tokens, steps, confidence, block, nfe)
    if int(state.status[0]) != Status.OK:
        raise DecodeError(Status(int(state.status[0])).message)


@jax.jit
def _begin(
    model: DiffusionLM,
    prompt_ids: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    keys: jax.Array | None,
) -> tuple[DecodeState, jax.Array]:
    state = start(model, prompt_ids, lengths, config, keys)
    return state, jnp.any(is_live(model, state, config))


@jax.jit
def _turn(
    model: DiffusionLM, state: DecodeState, config: DecodeConfig
) -> tuple[DecodeState, jax.Array, jax.Array]:
    """One turn, whether it goes on, and the confidences [B, L] from each block's start."""

    def observe(_: DecodeState, turn: Turn) -> jax.Array:
        found = jnp.exp(turn.prediction.log_confidence[:, : config.sizes.longest])
        return jnp.pad(found, ((0, 0), (0, config.sizes.longest - found.shape[1])))

    state, seen = observed_step(model, state, config, observe)
    return state, jnp.any(is_live(model, state, config)), seen
