"""What goes wrong inside a decode ends its row with a status; what is wrong outside is an error at once."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc

MASK, PAD = 510, 509


@pytest.fixture(scope="module")
def model() -> dc.Transformer:
    return small_model("llada")


def quick(**changes) -> dc.DecodeConfig:
    return dc.recipe(
        "confidence",
        **{"gen_length": 16, "block_length": 8, "threshold": 0.5, "stop_at_eos": False, **changes},
    )


def changed(model: dc.Transformer, change) -> dc.Transformer:
    """A copy of the model with its head passed through `change`."""
    copy = jax.tree.map(lambda leaf: leaf, model)
    copy.head[...] = change(copy.head[...])
    return copy


def test_a_prompt_keeps_its_mask_ids(model):
    prompt = np.array([[3, MASK, MASK, 40, 41, MASK]])
    with_masks = dc.generate(model, prompt, config=quick())
    state = jax.jit(lambda m, p, n, c: dc.decode(m, dc.start(m, p, n, c), c))(
        model, prompt, jnp.array([6]), quick()
    )
    np.testing.assert_array_equal(state.tokens[0, :6], prompt[0])
    assert not (np.asarray(with_masks.tokens) == MASK).any()
    assert with_masks.lengths[0] == 16


@pytest.mark.parametrize("name", ["vanilla", "depcap", "factor"])
def test_a_model_that_predicts_the_mask_terminates(model, name):
    stubborn = changed(model, lambda head: head.at[:, MASK].set(3.0 * jnp.abs(head).max()))
    ids = np.array([[1, 2, 3]])
    result = dc.generate(stubborn, ids, config=dc.recipe(name, gen_length=16, stop_at_eos=False))
    assert not (np.asarray(result.tokens) == MASK).any()
    assert (np.asarray(result.commit_step) > 0).all()


def test_padding_rows_of_the_embedding_are_never_chosen(model):
    config = dataclasses.replace(model.config, vocab_size=511)
    padded = dc.Transformer.abstract(config)
    padded = jax.tree.unflatten(jax.tree.structure(padded), jax.tree.leaves(model))
    loud = changed(padded, lambda head: head.at[:, 511].set(2.0 * jnp.abs(head).max()))
    result = dc.generate(loud, np.array([[1, 2, 3]]), config=quick())
    assert (np.asarray(result.tokens) < 511).all()


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_non_finite_logits_end_their_row_alone(model, cache):
    """Token 77 poisons whoever attends to it; the other row decodes as ever."""
    poisoned = jax.tree.map(lambda leaf: leaf, model)
    poisoned.embed[...] = poisoned.embed[...].at[77].set(jnp.nan)
    ids = np.array([[5, 6, 7], [5, 77, 7]])
    result = dc.generate(poisoned, ids, config=quick(cache=cache))
    healthy = dc.generate(model, ids, config=quick(cache=cache))
    assert result.status.tolist() == [dc.Status.OK, dc.Status.NON_FINITE]
    np.testing.assert_array_equal(result.tokens[0], healthy.tokens[0])
    assert (np.asarray(result.tokens[1]) == PAD).all()
    assert result.lengths[1] == 0
    with pytest.raises(dc.DecodeError, match=r"row 1: .*not finite"):
        dc.raise_for_status(result)
    dc.raise_for_status(healthy)


def test_bad_prompts_inside_jit_have_a_status(model):
    ids = jnp.array([[5, 6, 7], [5, 512, 7], [5, -1, 7], [5, 6, 7]])
    lengths = jnp.array([3, 3, 3, 4])
    jitted = jax.jit(lambda m, i, n: dc.generate(m, i, n, config=quick()))
    result = jitted(model, ids, lengths)
    assert result.status.tolist() == [0, 2, 2, 2]
    assert result.nfe.tolist()[1:] == [0, 0, 0]
    assert result.lengths.tolist() == [16, 0, 0, 0]
    with pytest.raises(dc.DecodeError, match="rows 1, 2, 3: the prompt holds an id outside"):
        dc.raise_for_status(result)
    # An id that is padding may be anything.
    assert jitted(model, ids, jnp.array([3, 1, 1, 3])).status.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        ([[1, 2], [3, 512]], None, "prompt_ids[1, 1] is 512; ids are in [0, 512)"),
        ([[1, -2]], None, "prompt_ids[0, 1] is -2"),
        ([[1, 2**32 + 5]], None, "prompt_ids holds 4294967301, which 32 bits do not"),
        ([[1, 2]], [2**32 + 1], "prompt_lengths holds 4294967297, which 32 bits do not"),
        ([1, 2], None, "prompt_ids must have shape [B, P], got [2]"),
        ([[1.0, 2.0]], None, "prompt_ids must hold integers, got float64"),
        ([[1, 2]], [3], "prompt_lengths[0] is 3; prompt_ids has 2 columns"),
        ([[1, 2]], [[2]], "prompt_lengths must have shape [1], got [1, 1]"),
        ([[0] * 1020], None, "a prompt of 1020 and an answer of 16 exceed the model's context of 1024"),
    ],
)
def test_bad_prompts_outside_jit_are_errors(model, ids, lengths, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dc.generate(model, np.array(ids), None if lengths is None else np.array(lengths), config=quick())


def test_a_config_is_no_name(model):
    with pytest.raises(ValueError, match=r"config must be a DecodeConfig, such as depcap.* got 'depcap'"):
        dc.generate(model, np.array([[1]]), config="depcap")  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(ValueError, match="partition must be a policy, such as DepGABlocks"):
        dc.DecodeConfig(partition=dc.DepGABlocks)  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(ValueError, match=r"cache must be a policy.* got 'dual'"):
        dc.DecodeConfig(cache="dual")  # type: ignore[arg-type]  # the mistake meant


def test_sampling_needs_a_key(model):
    with pytest.raises(ValueError, match="needs a key"):
        dc.generate(model, np.array([[1]]), config=quick(temperature=1.0))
    with pytest.raises(ValueError, match="one key or 1 of them"):
        dc.generate(
            model, np.array([[1]]), config=quick(temperature=1.0), key=jax.random.split(jax.random.key(0), 3)
        )


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual"])
def test_an_empty_prompt_decodes(family, cache):
    model = small_model(family)
    result = dc.generate(model, np.zeros((2, 3), np.int32), np.array([0, 3]), config=quick(cache=cache))
    assert result.status.tolist() == [dc.Status.OK] * 2
    assert result.lengths.tolist() == [16, 16]


def test_tiny_answers(model):
    for gen_length in (1, 3):
        config = dc.recipe("depcap", gen_length=gen_length, stop_at_eos=False)
        result = dc.generate(model, np.array([[4, 5]]), config=config)
        assert result.lengths[0] == gen_length
        assert int(result.block_sizes.sum()) == gen_length


def test_the_public_loop_also_wants_a_key_to_sample(model):
    config = quick(temperature=1.0)
    with pytest.raises(ValueError, match="sampling needs a key for each row"):
        dc.start(model, jnp.zeros((1, 4), jnp.int32), jnp.array([4]), config)
