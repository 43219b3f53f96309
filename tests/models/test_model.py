"""The transformer against the authors' PyTorch models, and its own promises."""

from __future__ import annotations

import dataclasses
import math

import chex
import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_checkpoints import (
    DREAM_7B,
    ILLADA_8B,
    LLADA_8B,
    QWEN2_05B,
    QWEN3_06B,
    golden_config,
    golden_forward,
    golden_tensors,
    write_folder,
)

from depcap_jax.checkpoints.huggingface.config_json import from_config_json
from depcap_jax.checkpoints.loading import load
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.models.parameters import get_leaves, with_leaves

forward = jax.jit(lambda model, ids, lengths=None: model(ids, lengths))
hidden = jax.jit(lambda model, ids, **settings: model.hidden(ids, **settings))


@pytest.mark.parametrize("way", ["hugging_face", "converted"])
def test_logits_match_pytorch(family, way, golden_dir, converted_dir):
    model, _ = load((golden_dir if way == "hugging_face" else converted_dir) / family)
    ids, golden = golden_forward(family)
    logits = np.asarray(forward(model, ids))
    difference = np.abs(logits - golden)
    assert difference.max() <= 1e-2
    assert difference.mean() <= 5e-4
    assert (logits.argmax(-1) == golden.argmax(-1)).all()


@pytest.mark.parametrize(
    ("published", "count"),
    [
        (LLADA_8B, 8_015_581_184),
        (DREAM_7B, 7_615_616_512),
        (ILLADA_8B, 7_615_025_152),  # its card: 7.62 billion, 6.98 without the embedding
        ({**QWEN2_05B, "mask_token_id": 151665, "predicts_next": True}, 494_032_768),
        (QWEN3_06B, 596_049_920),
    ],
    ids=["llada", "dream", "illada", "qwen2", "qwen3"],
)
def test_full_size_has_the_published_number_of_parameters(published, count):
    model = Transformer.abstract(from_config_json(published), dtype=jnp.bfloat16)
    leaves = get_leaves(model).values()
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize("bits", [None, "int8", "int4"])
def test_an_abstract_model_is_what_would_be_built(family, bits):
    config = dataclasses.replace(golden_runs.model(family).config, quantize=bits)
    built = nnx.eval_shape(lambda: Transformer(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)))
    assert jax.tree.flatten(Transformer.abstract(config, dtype=jnp.bfloat16)) == jax.tree.flatten(built)


def test_config_survives_the_round_trip(family):
    config = golden_runs.model(family).config
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_cached_pass_equals_plain_pass(family):
    model = golden_runs.model(family)
    ids = jnp.asarray(golden_forward(family)[0])
    plain, _ = hidden(model, ids)
    full, cache = hidden(model, ids, cache=model.init_cache(*ids.shape))
    np.testing.assert_allclose(full, plain, atol=1e-4)
    start = jnp.array([5, 11])
    part_ids = jnp.stack([ids[row, begin : begin + 9] for row, begin in enumerate([5, 11])])
    part, _ = hidden(model, part_ids, start=start, cache=cache)
    expected = jnp.stack([plain[row, begin : begin + 9] for row, begin in enumerate([5, 11])])
    np.testing.assert_allclose(part, expected, atol=1e-4)


@pytest.mark.parametrize("length", [8, 37], ids=["part", "whole canvas"])
def test_what_may_not_be_written_keeps_its_keys_and_values(length):
    model = golden_runs.model("llada")
    ids = jnp.asarray(golden_forward("llada")[0])
    _, cache = hidden(model, ids, cache=model.init_cache(*ids.shape))
    others = (ids[:, :length] + 1) % 500
    start = jnp.zeros(2, jnp.int32) if length < ids.shape[1] else None
    write = jnp.zeros(others.shape, bool).at[:, 3].set(True)
    _, updated = hidden(model, others, start=start, cache=cache, write=write)
    before, after = jax.tree.leaves(cache)[0], jax.tree.leaves(updated)[0]
    changed = np.asarray((after != before).any(axis=(0, 1, 2)))
    assert changed.nonzero()[0].tolist() == [3]


def test_invalid_positions_are_not_seen(family):
    model = golden_runs.model(family)
    ids, golden = golden_forward(family)
    padded = np.concatenate([ids, np.full((2, 6), 7, ids.dtype)], axis=1)
    logits = forward(model, padded, jnp.full(2, ids.shape[1]))[:, : ids.shape[1]]
    assert np.abs(np.asarray(logits) - golden).max() <= 1e-2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_gives_float32_logits_near_the_golden_ones(family, dtype, golden_dir):
    model, _ = load(golden_dir / family, dtype=dtype)
    ids, golden = golden_forward(family)
    logits = forward(model, ids)
    assert model.dtype == jnp.dtype(dtype)
    assert logits.dtype == jnp.float32
    # Attention is sharp in these models, so that eight bits of mantissa change a few words.
    correlation = np.corrcoef(np.asarray(logits).ravel(), golden.ravel())[0, 1]
    assert correlation > (0.98 if dtype == "bfloat16" else 0.999)


def test_head_alone_takes_chosen_positions(family):
    model = golden_runs.model(family)
    ids, golden = golden_forward(family)
    states, _ = hidden(model, ids)
    chosen = np.asarray(model.logits(states[:, [3, 30]]))
    assert np.abs(chosen - golden[:, [3, 30]]).max() <= 1e-2


def golden_model(family, dtype, *, tied):
    """The golden weights in a dtype; tied: without the head."""
    model = golden_runs.model(family)
    leaves = {
        name: jnp.asarray(np.asarray(leaf).astype(dtype))
        for name, leaf in get_leaves(model).items()
        if not (tied and name == "head")
    }
    return with_leaves(dataclasses.replace(model.config, tie_embeddings=tied), leaves)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_logits_of_chosen_tokens_are_those_of_the_head(family, tied, dtype):
    model = golden_model(family, jnp.dtype(dtype), tied=tied)
    numbers = np.random.default_rng(0)
    states = jnp.asarray(numbers.standard_normal((2, 5, model.config.width)), dtype)
    tokens = jnp.asarray([[511, 511, 0, 1, 2, 3, 499], numbers.integers(0, 512, 7).tolist()])
    chosen = model.token_logits(states, tokens)
    chex.assert_shape(chosen, (2, 5, 7))
    assert chosen.dtype == jnp.float32
    expected = np.take_along_axis(np.asarray(model.logits(states)), np.asarray(tokens)[:, None, :], axis=-1)
    np.testing.assert_allclose(chosen, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_logits_of_chosen_tokens_leave_the_others_alone(tied):
    """The size of the vocabulary is in no array but the weights."""
    model = golden_model("llada", jnp.dtype("float32"), tied=tied)
    states, tokens = jnp.zeros((2, 5, model.config.width)), jnp.zeros((2, 7), jnp.int32)

    def sizes(function, *arguments):
        jaxpr = jax.make_jaxpr(function)(model, *arguments)
        return {size for equation in jaxpr.eqns for out in equation.outvars for size in out.aval.shape}

    assert model.config.embedding_size in sizes(Transformer.logits, states)
    assert model.config.embedding_size not in sizes(Transformer.token_logits, states, tokens)


def test_wrong_shapes_are_refused_while_tracing():
    model = golden_runs.model("llada")
    ids = jnp.zeros((2, 4), jnp.int32)
    canvas = {"start": jnp.zeros(2, jnp.int32), "cache": model.init_cache(2, 9)}
    for wrong in (
        {"write": jnp.ones((1, 4), bool)},
        {"start": jnp.zeros((2, 1), jnp.int32)},
        {"lengths": jnp.ones(1, jnp.int32)},
    ):
        with pytest.raises(AssertionError, match="shape"):
            jax.eval_shape(lambda settings: model.hidden(ids, **settings), {**canvas, **wrong})
    with pytest.raises(ValueError, match="without a cache"):
        model.hidden(ids, start=canvas["start"])
    with pytest.raises(ValueError, match="4 positions of a canvas of 9"):
        model.hidden(ids, cache=canvas["cache"])
    states = jnp.zeros((2, 3, model.config.width))
    for tokens in (ids[0], ids[:1]):
        with pytest.raises(AssertionError, match="shape"):
            model.token_logits(states, tokens)


def test_source_is_where_a_position_is_predicted():
    positions = jnp.array([[0, 1, 2, 9], [3, 0, 0, 1]])
    chex.assert_trees_all_equal(golden_runs.model("llada").source(positions), positions)
    expected = jnp.array([[0, 0, 1, 8], [2, 0, 0, 0]])
    chex.assert_trees_all_equal(golden_runs.model("dream").source(positions), expected)


def test_grouped_heads_equal_repeated_heads(tmp_path):
    """Two key/value heads that serve two query heads each give what four equal ones give."""
    config, tensors = golden_config("llada"), golden_tensors("llada")
    grouped, repeated = dict(tensors), dict(tensors)
    for key, value in tensors.items():
        if key.endswith(("k_proj.weight", "v_proj.weight")):
            heads = value.reshape(4, 16, 64)[::2]
            grouped[key] = np.ascontiguousarray(heads.reshape(32, 64))
            repeated[key] = np.ascontiguousarray(heads.repeat(2, axis=0).reshape(64, 64))
    few, _ = load(write_folder(tmp_path / "grouped", {**config, "n_kv_heads": 2}, grouped))
    many, _ = load(write_folder(tmp_path / "repeated", config, repeated))
    assert few.config.num_kv_heads == 2
    assert [leaf.shape[1] for leaf in jax.tree.leaves(few.init_cache(1, 8))] == [2] * 6
    ids, _ = golden_forward("llada")
    np.testing.assert_allclose(forward(few, ids), forward(many, ids), atol=1e-2)
