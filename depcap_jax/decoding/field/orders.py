"""Which position is the surest? Scores [B, L] that a selection may rank by, greater being surer."""

from __future__ import annotations

from typing import Protocol

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.policy import policy


class Order(Protocol):
    """A score of positions."""

    @property
    def reads(self) -> Reads:
        """What it reads of each position."""
        ...

    def __call__(self, prediction: Prediction) -> jax.Array:
        """Scores [B, L] float32, greater for what is to come sooner."""
        ...


@policy
class ByConfidence:
    """The probability of the token (LLaDA; Dream's `maskgit_plus`)."""

    reads = Reads()

    def __call__(self, prediction: Prediction) -> jax.Array:
        """Log c."""
        return prediction.log_confidence


@policy
class ByMargin:
    """How far the most likely token is ahead of the second (Dream's `topk_margin`)."""

    reads = Reads(top_k=2)

    def __call__(self, prediction: Prediction) -> jax.Array:
        """The difference of both probabilities."""
        assert prediction.top is not None
        best, second = jnp.exp(prediction.top.log_p[..., 0]), jnp.exp(prediction.top.log_p[..., 1])
        return best - second


@policy
class ByEntropy:
    """How little entropy is left (Dream's `entropy`)."""

    reads = Reads(entropy=True)

    def __call__(self, prediction: Prediction) -> jax.Array:
        """Minus H."""
        assert prediction.entropy is not None
        return -prediction.entropy
