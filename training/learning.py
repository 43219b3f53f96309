"""One training step: the masked-diffusion loss, the optimizer and its rate."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from depcap_jax.models import ModelConfig, Transformer
from training.masking import Batch
from training.shift import Params

PEAK_RATE = 2.5e-3
_WARMUP_STEPS = 100
_STEADY = 0.65


class Weights:
    """A model's arrays by name, and the way back to the model."""

    def __init__(self, model: Transformer):
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(model)
        self._names = [jax.tree_util.keystr(path) for path, _ in leaves]
        self.initial: Params = dict(zip(self._names, (leaf for _, leaf in leaves), strict=True))

    def model(self, params: Params) -> Transformer:
        """The model that holds `params`."""
        return jax.tree.unflatten(self._structure, [params[name] for name in self._names])


def head_start(params: Params) -> Params:
    """Initial weights that make copying easy: the head reads what the embedding writes.

    Embeddings have unit size, so that the first steps do not wash away what tells tokens apart.
    """
    embed = params[".embed.value"] / 0.02
    return {**params, ".embed.value": embed, ".head.value": 0.04 * embed.T}


def token_losses(model: Transformer, batch: Batch) -> jax.Array:
    """Cross-entropy [B, T] of the clean tokens, given the noisy ones.

    In a cached batch frozen positions are seen as a pass over `before` left them; no gradient flows there.
    """
    noisy, lengths, cache, write = jnp.asarray(batch.noisy), jnp.asarray(batch.lengths), None, None
    if batch.before is not None and batch.frozen is not None:
        _, cache = model.hidden(
            jnp.asarray(batch.before), lengths=lengths, cache=model.init_cache(*noisy.shape)
        )
        cache, write = jax.lax.stop_gradient(cache), ~jnp.asarray(batch.frozen)
    hidden, _ = model.hidden(noisy, lengths=lengths, cache=cache, write=write)
    hidden = hidden[:, model.source(jnp.arange(noisy.shape[1]))]
    return optax.softmax_cross_entropy_with_integer_labels(model.logits(hidden), batch.clean)


def optimizer() -> optax.GradientTransformation:
    """Clipped Muon with AdamW, at rate 1: the step multiplies by the rate of the moment."""

    def matrices(params: Params) -> dict[str, contrib.MuonDimensionNumbers | None]:
        return {name: contrib.MuonDimensionNumbers() if "kernel" in name else None for name in params}

    muon = contrib.muon(
        1.0,
        ns_steps=3,  # a rough orthogonalisation learns as fast here and costs half
        preconditioning="aol",
        adam_learning_rate=0.4,
        weight_decay=0.01,
        adam_b2=0.98,
        muon_weight_dimension_numbers=matrices,  # type: ignore[arg-type]  # a callable is documented
        consistent_rms=0.2,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


State = dict[str, Any]
"""`params`, their `average` and the optimizer's `moments`."""


Step = Callable[[State, Batch, jax.Array, jax.Array], tuple[State, jax.Array]]
Loss = Callable[[Params, Batch], jax.Array]


@functools.cache
def make_step(config: ModelConfig) -> tuple[Step, Loss]:
    """The training step (state, batch, rate and averaging factor to state and loss), and the loss alone.

    Both are jitted, and runs of models of the same sizes share them.
    """
    rule, weights = optimizer(), Weights(Transformer.abstract(config))

    def loss(params: Params, batch: Batch) -> jax.Array:
        return jnp.sum(token_losses(weights.model(params), batch) * batch.weight)

    def step(state: State, batch: Batch, rate: jax.Array, keep: jax.Array) -> tuple[State, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state["params"], batch)
        with jax.numpy_dtype_promotion("standard"):  # Muon's powers of a step's number are not strict
            updates, moments = rule.update(gradients, state["moments"], state["params"])
        params = jax.tree.map(lambda p, u: p + rate * u, state["params"], updates)
        average = jax.tree.map(lambda a, p: keep * a + (1 - keep) * p, state["average"], params)
        return {"params": params, "average": average, "moments": moments}, value

    return jax.jit(step, donate_argnums=0), jax.jit(loss)


def rate_at(step: int, progress: float, peak: float = PEAK_RATE) -> float:
    """The learning rate: a short rise, a plateau, then straight down to (nearly) zero at progress 1."""
    rise = min(1.0, (step + 1) / _WARMUP_STEPS)
    fall = min(1.0, (1 - progress) / (1 - _STEADY))
    return peak * max(rise * fall, 0.003)
