"""Which token at each position? The most likely one, or one drawn with Gumbel noise."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding import numerics
from depcap_jax.decoding.policy import check_count, check_range, policy, static
from depcap_jax.decoding.select import Prediction


@policy
class Sampling:
    """Draws tokens from the distribution at `temperature`, within the nucleus `top_p` and the best `top_k`.

    It chooses the token only: a token's confidence stays its probability under the model itself.
    """

    temperature: float | jax.Array = 1.0
    top_p: float | jax.Array | None = None
    top_k: int | None = static(default=None)

    def __post_init__(self) -> None:
        check_range("temperature", self.temperature, 0.0, None)
        if self.top_p is not None:
            check_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_k is not None:
            check_count("top_k", self.top_k, 1)

    def __call__(self, logits: jax.Array, key: jax.Array, step: jax.Array, position: jax.Array) -> jax.Array:
        """Tokens [B, W] drawn from logits [B, W, V], by keys [B], steps [B] and positions [B, W].

        The noise belongs to the row's key, its step and the position, so a row draws the same tokens
        whatever stands beside it and whatever the window's width.
        """
        scaled = logits / jnp.maximum(self.temperature, 1e-6)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest = numerics.top_k(scaled, self.top_k)[0][..., -1:]
            scaled = jnp.where(scaled < smallest, -jnp.inf, scaled)
        if self.top_p is not None:
            scaled = jnp.where(_in_nucleus(scaled, self.top_p), scaled, -jnp.inf)

        def noise(row_key: jax.Array, row_step: jax.Array, row_position: jax.Array) -> jax.Array:
            step_key = jax.random.fold_in(row_key, row_step)
            position_keys = jax.vmap(jax.random.fold_in, (None, 0))(step_key, row_position)
            return jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[-1:], jnp.float32))(position_keys)

        return numerics.argmax(scaled + jax.vmap(noise)(key, step, position))


def _in_nucleus(logits: jax.Array, top_p: float | jax.Array) -> jax.Array:
    """The fewest most likely tokens whose mass reaches `top_p`; always the best one."""
    order = jnp.argsort(-logits, axis=-1)
    probs = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs
    keep = (before < top_p) | (jnp.arange(logits.shape[-1]) == 0)
    return jnp.take_along_axis(keep, jnp.argsort(order, axis=-1), axis=-1)


def predict(
    logits: jax.Array,
    vocab_size: int,
    mask_token_id: int,
    sampling: Sampling | None,
    key: jax.Array | None,
    step: jax.Array,
    position: jax.Array,
) -> Prediction:
    """The token to commit at each window position, and how confident the model is of it.

    The mask id and the embedding's padding rows are never chosen, but keep their part of the
    distribution: a model that insists on them is not confident of anything else.
    """
    summary = numerics.summarise(logits)
    ids = lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2)
    choosable = jnp.where((ids == mask_token_id) | (ids >= vocab_size), -jnp.inf, logits)
    if sampling is None:
        token = numerics.argmax(choosable)
    else:
        assert key is not None
        token = sampling(choosable, key, step, position)
    logit = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return Prediction(logits, summary, token.astype(jnp.int32), summary.log_confidence(logit))
