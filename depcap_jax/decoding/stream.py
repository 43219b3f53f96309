"""A decode as it happens: one row, a snapshot after every forward pass."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.decoding.generate import as_data, as_integers, row_keys, start
from depcap_jax.decoding.loop import decode_step, is_live
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeError, DecodeState, Status, window_at


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """An answer on its way."""

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
      prompt_ids: [P] integers, padded on the right to a width that prompts may share.
      prompt_length: ids of it that count.
      config: how to decode.
      key: one key, or one in an array [1], for sampling.

    Raises:
      ValueError: if the decoder samples and there is no key, or the prompt does not hold integers of 32 bits.
      DecodeError: if the row does not end well; what was decoded until then has been yielded.
    """
    keys, config = row_keys(key, 1, config), as_data(config)
    ids, length = as_integers("prompt_ids", prompt_ids, "P"), as_integers("prompt_length", prompt_length)
    state, live = _begin(model, ids[None], length[None], config, keys)
    model = model.on_canvas(state.tokens.shape[1])
    confidence, status = np.full(config.gen_length, np.nan, np.float32), int(state.status[0])
    while bool(live):
        state, news = _turn(model, state, config)
        now, live, status = jax.device_get(news)  # all that is read of a turn comes at once
        first, end, nfe = map(int, now.pop("numbers"))
        confidence = np.where(now["commit_step"] == nfe, now["confidence"], confidence)
        confidence = np.where(now["commit_step"] == 0, np.nan, confidence)  # it may have been revoked
        yield Snapshot(**{**now, "confidence": confidence}, block=(first, end), nfe=nfe)
    if status != Status.OK:
        raise DecodeError(Status(int(status)).message)


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


# The state is given up: its cache is updated in place, not copied.
@functools.partial(jax.jit, donate_argnames="state")
def _turn(model: DiffusionLM, state: DecodeState, config: DecodeConfig) -> tuple[DecodeState, Any]:
    """The new state; and what the host is told: the confidences are those of what this turn committed."""
    state, turn = decode_step(model, state, config)
    answer, first = (state.answer_start, config.gen_length), state.answer_start[0]
    confidence = window_at(jnp.exp(turn.prediction.log_confidence), -turn.start, config.gen_length, 0.0)
    told = {
        "tokens": window_at(state.tokens, *answer, model.config.pad_token_id)[0],
        "commit_step": window_at(state.commit_step, *answer, 0)[0],
        "confidence": confidence[0],
        "numbers": (state.block_start[0] - first, state.block_end[0] - first, state.nfe[0]),
    }
    return state, (told, jnp.any(is_live(model, state, config)), state.status[0])
