"""`generate` inside a user's own program: under jit, in a scan, under vmap, beside a gradient."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc

CONFIG = dc.recipe("depcap", cache="dual", gen_length=16, l_min=4, l_max=8, tau_low=0.3, stop_at_eos=False)
PROMPTS = np.random.default_rng(11).integers(0, 500, (3, 2, 12)).astype(np.int32)
LENGTHS = np.array([[12, 5], [7, 12], [3, 9]], np.int32)
FIELDS = ("tokens", "nfe", "block_sizes", "commit_step", "status")


@pytest.fixture(scope="module")
def model() -> dc.Transformer:
    return small_model("llada")


@pytest.fixture(scope="module")
def plain(model) -> list[dc.DecodeResult]:
    return [dc.generate(model, ids, n, config=CONFIG) for ids, n in zip(PROMPTS, LENGTHS, strict=True)]


def assert_same(result: dc.DecodeResult, plain: list[dc.DecodeResult]) -> None:
    for index, expected in enumerate(plain):
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(result, field)[index], getattr(expected, field), field)


def test_under_jit(model, plain):
    program = jax.jit(lambda m, ids, n: dc.generate(m, ids + 0, n, config=CONFIG).tokens * 2)
    np.testing.assert_array_equal(program(model, PROMPTS[0], LENGTHS[0]), 2 * plain[0].tokens)


def test_in_a_scan(model, plain):
    """Batches one after the other, in one compiled program."""

    @jax.jit
    def program(model, batches):
        def step(total, batch):
            result = dc.generate(model, *batch, config=CONFIG)
            return total + jnp.sum(result.nfe, dtype=jnp.int32), result

        return jax.lax.scan(step, jnp.int32(0), batches)

    total, results = program(model, (PROMPTS, LENGTHS))
    assert_same(results, plain)
    assert int(total) == sum(int(result.nfe.sum()) for result in plain)


@pytest.mark.compiler
def test_under_vmap(model, plain):
    """One compiled loop over all batches; it turns until the last row of the last batch is done."""
    many = jax.jit(jax.vmap(lambda m, ids, n: dc.generate(m, ids, n, config=CONFIG), (None, 0, 0)))
    assert_same(many(model, PROMPTS, LENGTHS), plain)


def test_beside_a_gradient(model, plain):
    """A loss of what was generated: the answers are constants, as in a policy gradient."""

    def loss(model):
        result = dc.generate(model, PROMPTS[0], LENGTHS[0], config=CONFIG)
        logits = model(result.tokens)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), result.tokens[..., None], axis=-1)
        return -jnp.mean(chosen)

    def of_constants(model):
        chosen = jnp.take_along_axis(
            jax.nn.log_softmax(model(plain[0].tokens)), plain[0].tokens[..., None], axis=-1
        )
        return -jnp.mean(chosen)

    got, expected = jax.jit(jax.grad(loss))(model), jax.jit(jax.grad(of_constants))(model)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(got))


def test_what_is_recorded_is_a_constant_too(model):
    """A trace holds floats: without a stop, JAX would have to differentiate the loop, and cannot."""

    def loss(model):
        trace: Any = dc.generate(model, PROMPTS[0], LENGTHS[0], config=CONFIG, trace=True).trace
        return jnp.sum(trace.confidence) + jnp.sum(model.norm.scale[...])

    gradient = jax.eval_shape(jax.grad(loss), model)
    assert gradient.norm.scale.shape == model.norm.scale.shape


def test_arrays_on_a_device_are_left_to_the_status(model):
    """Nothing of a device array comes to the host before the decode: a bad id is a status."""
    ids = jnp.asarray(PROMPTS[0]).at[1, 2].set(512)
    result = dc.generate(model, ids, LENGTHS[0], config=CONFIG)
    assert result.status.tolist() == [dc.Status.OK, dc.Status.BAD_PROMPT]
    long = dc.generate(model, PROMPTS[0], jnp.array([12, 13]), config=CONFIG)
    assert long.status.tolist() == [dc.Status.OK, dc.Status.BAD_PROMPT]


def test_a_prompt_beyond_the_context_has_a_status(model):
    ids = jnp.zeros((2, 1020), jnp.int32)
    result = dc.generate(model, ids, jnp.array([1020, 8]), config=dc.confidence(gen_length=16))
    assert result.status.tolist() == [dc.Status.BAD_PROMPT, dc.Status.OK]
    assert result.nfe.tolist()[0] == 0


def test_a_sweep_inside_a_program_is_traced_once(model):
    program = jax.jit(chex.assert_max_traces(lambda m, c: dc.generate(m, PROMPTS[0], config=c).nfe, n=1))
    settings: Any = {"gen_length": 16, "l_min": 4, "l_max": 8}
    passes = [int(program(model, dc.depcap(tau_low=tau, **settings)).sum()) for tau in (0.01, 0.5, 1.0)]
    assert len(set(passes)) > 1


@dc.policy
class WrongShape:
    """A selection that forgets the batch."""

    def init(self, batch: int, gen_length: int) -> None:
        return None

    def __call__(self, prediction, candidates, start, memory):
        return candidates[0], None, None


def test_shapes_are_checked_while_tracing(model):
    with pytest.raises(ValueError, match=r"WrongShape must return flags of shape \[2, 16\], got bool \[16\]"):
        dc.generate(model, PROMPTS[0], config=dc.DecodeConfig(select=WrongShape(), gen_length=16))
    with pytest.raises(AssertionError, match="rank"):
        jax.jit(dc.start)(model, PROMPTS, LENGTHS[0], CONFIG)
    with pytest.raises(ValueError, match=r"open must be bool \[2, 12\], got bool \[2, 11\]"):
        dc.generate_canvas(model, PROMPTS[0], np.ones((2, 11), bool), LENGTHS[0], config=CONFIG)
