"""Predictions made from logits, as the loop makes them from a model's hidden states."""

from __future__ import annotations

import functools
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.decoding.compute.numerics import Summary
from depcap_jax.decoding.compute.prediction import Prediction, Reads, look, predict


@functools.partial(jax.jit, static_argnames="reads")
def prediction_of(logits: np.ndarray, reads: Reads | None = None) -> Prediction:
    """What is read of logits [B, W, V]; the last id is the mask."""
    reads = reads or Reads()
    size = logits.shape[-1]
    model: Any = types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=size, mask_token_id=size - 1))
    made = predict(model, jnp.asarray(logits), jnp.zeros(logits.shape[:2], jnp.int32))
    entropy, top = look(jnp.asarray(logits), made.summary, reads)
    made = made._replace(entropy=entropy, top=top)
    if not reads.pairs:
        return made
    rows = jnp.arange(len(logits))[:, None, None]
    columns = jnp.arange(logits.shape[1])[None, :, None]
    summary = Summary(*(field[..., None] for field in made.summary))
    return made._replace(pairs=summary.log_prob(logits[rows, columns, made.token[:, None, :]]))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in float64."""
    z = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
