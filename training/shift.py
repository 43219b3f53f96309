"""Turns a trained LLaDA into a Dream to start from: one more layer moves every token a place to the left.

Dream predicts a position from the hidden state before it. So where LLaDA's layers find the token of position
i at i, here they must find it at i - 1; all distances between tokens stay as they were. A layer below them
does that. Half of its heads look one place ahead and add what they see; the other half look at their own
place and subtract it. Where to look does not depend on the tokens: queries and keys are constants (Dream's
have biases, LLaDA's have none), and the rotations of RoPE turn constants into a function of the distance.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.models import ModelConfig

Params = dict[str, jax.Array]

# The score's amplitude at each of RoPE's frequencies: with heads of 32, neighbours weigh e ** -10 as much.
_SHARPNESS = 80.0


def dream_from_llada(llada: Mapping[str, jax.Array], dream: Params, config: ModelConfig) -> Params:
    """Dream's weights that predict nearly what LLaDA's do, from one place earlier.

    Nearly: embeddings get one size, the first token is out of sight, and nothing stands behind the last.

    Args:
      llada: the trained weights, by name.
      dream: freshly drawn weights of a model with one more layer; what LLaDA lacks is taken from here.
      config: Dream's.

    Raises:
      ValueError: if the new layer's values are too narrow to carry every embedding.
    """
    embedding = np.asarray(llada[".embed.value"], np.float64)  # [V, D]
    values = config.num_kv_heads * config.head_dim
    if values < min(embedding.shape) or config.num_heads != 2 * config.num_kv_heads:
        raise ValueError(
            f"shifting needs two heads per key/value head, and values at least {min(embedding.shape)} wide, "
            f"got {config.num_heads} heads, {config.num_kv_heads} key/value heads and values {values} wide"
        )
    moved = {re.sub(r"layers\[(\d+)\]", _one_up, name): weight for name, weight in llada.items()}
    size = np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
    # Embeddings of one size: the norm of the new layer then takes nothing away that it could not put back.
    alike = embedding / size * size.mean()
    layer = {
        f".layers[0].{name}.value": jnp.asarray(new, jnp.float32)
        for name, new in _layer(alike, config).items()
    }
    return {**dream, **moved, **layer, ".embed.value": jnp.asarray(alike, jnp.float32)}


def _one_up(layer: re.Match[str]) -> str:
    return f"layers[{int(layer[1]) + 1}]"


def _layer(embedding: np.ndarray, config: ModelConfig) -> dict[str, np.ndarray]:
    """The weights of the layer that shifts, for embeddings [V, D] of one size."""
    width, M, S, H = config.width, config.num_heads, config.num_kv_heads, config.head_dim
    directions = np.linalg.svd(embedding, full_matrices=True)[2]  # [D, D], those that embeddings use first
    read = directions[: S * H].T  # [D, S * H]
    written = np.sqrt(np.mean(embedding**2)) * read.T.reshape(S, 1, H, width)
    angle = config.rope_theta ** (-np.arange(0, H, 2) / H)
    constant = np.sqrt(_SHARPNESS)
    own = np.concatenate([np.full(H // 2, constant), np.zeros(H // 2)])
    ahead = constant * np.concatenate([np.cos(angle), np.sin(angle)])
    return {
        "attn.q.kernel": np.zeros((width, M * H)),
        "attn.k.kernel": np.zeros((width, S * H)),
        "attn.v.kernel": read,
        "attn.o.kernel": np.concatenate([written, -written], axis=1).reshape(M * H, width),
        "attn.q.bias": np.tile(np.concatenate([ahead, own]), S),
        "attn.k.bias": np.tile(own, S),
        "ff.down.kernel": np.zeros((config.ff_width, width)),
    }
