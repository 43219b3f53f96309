"""Weights in few bits: against NumPy, and the same model however it was loaded, stored, split or exported."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import chex
import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_checkpoints import golden_forward

import depcap_jax as dc
from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.huggingface.source import HuggingFaceSource
from depcap_jax.models import quantization
from depcap_jax.models.parameters import dequantize_leaf, get_leaves, leaf_shapes, quantize_leaf, with_leaves
from depcap_jax.tiny import held_out

BITS = quantization.BITS
# The golden models' logits have a spread of 20.
ROUNDING = 2e-2

forward = jax.jit(lambda model, ids: model(ids))
chosen_logits = jax.jit(lambda model, ids, tokens: model.token_logits(model.hidden(ids)[0], tokens))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", BITS)
def test_against_numpy(bits, axis, dtype):
    """Each weight is the nearest multiple of its channel's or group's scale, the largest one of 127 or 7."""
    rng = np.random.default_rng(5)
    weights = (rng.standard_normal((96, 96)) * rng.lognormal(size=(96, 96))).astype(np.float32)
    weights[:, 7] = weights[9] = 0
    most, group = {"int8": (127, 96), "int4": (7, 32)}[bits]
    channels = np.moveaxis(weights, axis, -1).reshape(-1, group).astype(np.float64)
    scale = np.abs(channels).max(axis=1, keepdims=True) / most
    scale = np.asarray(jnp.asarray(scale, dtype), np.float64)
    scale[scale == 0] = 1
    steps = np.clip(np.rint(channels / scale), -most, most)
    expected = np.moveaxis((steps * scale).reshape(96, 96), -1, axis)

    quantized = quantization.quantize(jnp.asarray(weights), bits, axis, dtype)
    assert quantized.values.nbytes == weights.size // {"int8": 1, "int4": 2}[bits]
    assert quantized.scale.size == weights.size // group
    ours = np.asarray(quantization.dequantize(quantized, axis), np.float64)
    # Ties of float32's division, and the product's rounding to dtype.
    step = np.moveaxis(np.broadcast_to(scale, channels.shape).reshape(96, 96), -1, axis)
    rounding = 2 * np.abs(expected) * float(jnp.finfo(dtype).eps)
    assert (np.abs(ours - expected) <= rounding).mean() > 0.999
    assert (np.abs(ours - weights) <= 0.501 * step + rounding).all()


def in_full(model: dc.Transformer) -> dc.Transformer:
    """The model with the same weights as plain numbers."""
    leaves, config = get_leaves(model), dataclasses.replace(model.config, quantize=None)
    return with_leaves(config, {name: dequantize_leaf(name, leaves) for name in leaf_shapes(config)})


def tied(model: dc.Transformer) -> dc.Transformer:
    leaves = dict(get_leaves(model))
    del leaves["head"]
    return with_leaves(dataclasses.replace(model.config, tie_embeddings=True), leaves)


def quantized(model: dc.Transformer, bits: quantization.Bits) -> dc.Transformer:
    leaves = [quantize_leaf(name, leaf, bits) for name, leaf in get_leaves(model).items()]
    merged = {name: leaf for parts in leaves for name, leaf in parts.items()}
    return with_leaves(dataclasses.replace(model.config, quantize=bits), merged)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("head", ["own", "tied"])
def test_logits_are_those_of_the_same_weights_in_full(family, bits, head):
    plain = golden_runs.model(family)
    model = quantized(tied(plain) if head == "tied" else plain, bits)
    assert (model.head is None) == (head == "tied")
    ids = jnp.asarray(golden_forward(family)[0])
    logits = np.asarray(forward(model, ids))
    np.testing.assert_allclose(logits, forward(in_full(model), ids), atol=ROUNDING)
    tokens = logits.argmax(axis=-1)[:, ::5].astype(np.int32)
    chosen = chosen_logits(model, ids, tokens)
    np.testing.assert_allclose(chosen, np.take_along_axis(logits, tokens[:, None], axis=-1), atol=ROUNDING)


@pytest.mark.parametrize(("bits", "error"), [("int8", 0.05), ("int4", 0.5)])
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
def test_what_it_costs_a_trained_model(name, bits, error):
    """The logits' error, in units of their spread, on a held-out problem whose answer is masked."""
    plain, tokenizer = dc.load(name)
    codec: Any = tokenizer
    turns = [{"role": "user", "content": held_out()[0].prompt}]
    prompt = list(codec.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))
    ids = jnp.asarray([prompt + [plain.config.mask_token_id] * (64 - len(prompt))])
    logits, expected = (np.asarray(forward(one, ids)) for one in (quantized(plain, bits), plain))
    assert 0 < np.sqrt(((logits - expected) ** 2).mean()) / expected.std() < error


@pytest.mark.parametrize("bits", ["int8", pytest.param("int4", marks=pytest.mark.compiler)])
def test_the_same_model_every_way(family, bits, golden_dir, tmp_path):
    model, _ = dc.load(golden_dir / family, quantize=bits, scan_layers=False)
    leaves = dict(get_leaves(model))
    kinds = {leaf.dtype.name for name, leaf in leaves.items() if quantization.summed_axis(name) is not None}
    assert kinds == {{"int8": "int8", "int4": "uint8"}[bits]}

    report = convert(golden_dir / family, tmp_path / "stored", quantize=bits, verify=True)
    assert report.bytes_written == sum(leaf.nbytes for leaf in leaves.values()) < report.bytes_read / 2
    dc.save(model, tmp_path / "saved")
    convert(golden_dir / family, tmp_path / "plain")
    ways = [
        dc.load(golden_dir / family, quantize=bits),  # scanned, on CPUs
        dc.load(golden_dir / family, quantize=bits, mesh=jax.make_mesh((4,), ("tensor",))),
        dc.load(tmp_path / "stored"),
        dc.load(tmp_path / "saved", quantize=bits),
        dc.load(tmp_path / "plain", quantize=bits),
        dc.load(tmp_path / "stored", mesh=jax.make_mesh((2, 4), ("data", "tensor")), scan_layers=False),
    ]
    for other, _ in ways:
        chex.assert_trees_all_equal(dict(get_leaves(other)), leaves, strict=True)

    for number, source in enumerate((model, tmp_path / "stored")):
        export(source, tmp_path / f"exported {number}")
        again, _ = dc.load(tmp_path / f"exported {number}")
        assert again.config.quantize is None
        chex.assert_trees_all_equal(dict(get_leaves(again)), dict(get_leaves(in_full(model))), strict=True)


def test_splits_over_devices_as_numbers_do(golden_dir):
    model, _ = dc.load(golden_dir / "llada", quantize="int4", mesh=jax.make_mesh((4,), ("tensor",)))
    leaves = get_leaves(model)

    def parts(name: str) -> list[int]:
        leaf = leaves[name]
        shard = leaf.sharding.shard_shape(leaf.shape)
        return [full // part for full, part in zip(leaf.shape, shard, strict=True)]

    expected = {"embed": [4, 1], "embed_scale": [4, 1], "head": [1, 4], "head_scale": [1, 4]}
    expected |= {"layers.0.ff.up.kernel": [1, 4], "layers.0.ff.up.kernel_scale": [1, 4]}
    expected |= {"layers.0.ff.down.kernel": [4, 1], "layers.0.ff.down.kernel_scale": [1, 1]}
    assert {name: parts(name) for name in expected} == expected
    ids = jnp.asarray(golden_forward("llada")[0])
    alone, _ = dc.load(golden_dir / "llada", quantize="int4")
    np.testing.assert_allclose(forward(model, ids), forward(alone, ids), atol=ROUNDING)


def test_one_weight_at_a_time_is_there_in_full(golden_dir, monkeypatch):
    read, matrices, alive_then = HuggingFaceSource.read_array, [], []

    def watched(self, leaf, dtype, sharding):
        alive_then.append(sum(matrix() is not None for matrix in matrices))
        array = read(self, leaf, dtype, sharding)
        if array.ndim == 2:
            matrices.append(weakref.ref(array))
        return array

    monkeypatch.setattr(HuggingFaceSource, "read_array", watched)
    model, _ = dc.load(golden_dir / "llada", quantize="int8")
    assert len(matrices) == 2 + 7 * model.config.num_layers
    assert max(alive_then) == 1, "the one before, until the next one takes its place"
    assert not any(matrix() for matrix in matrices)


@pytest.mark.compiler
def test_decodes_as_the_same_weights_in_full(golden_dir):
    """In the compiled loop too, with conflicts (the head's columns) and a cache."""
    model, _ = dc.load(golden_dir / "llada", quantize="int8", scan_layers=False)
    config = dc.recipe("depcap", cache="dual", gen_length=24, l_max=16, l_min=4, tau_low=0.2)
    prompts = np.random.default_rng(3).integers(0, 500, (2, 20))
    lengths = np.array([20, 11])
    ours, expected = (dc.generate(one, prompts, lengths, config=config) for one in (model, in_full(model)))
    np.testing.assert_array_equal(ours.tokens, expected.tokens)
    np.testing.assert_array_equal(ours.nfe, expected.nfe)


def test_refused(golden_dir, tmp_path):
    with pytest.raises(CheckpointError, match="quantize must be one of int8, int4, got 'int2'"):
        dc.load(golden_dir / "llada", quantize="int2")  # pyright: ignore[reportArgumentType]
    convert(golden_dir / "llada", tmp_path / "stored", quantize="int8")
    with pytest.raises(CheckpointError, match="kept in int8 already; int4 needs the original"):
        dc.load(tmp_path / "stored", quantize="int4")
    with pytest.raises(ValueError, match="int4 needs an even number of weights per channel, got 33"):
        quantization.quantize(jnp.ones((33, 8)), "int4", 0, jnp.float32)


@pytest.mark.parametrize("bits", [None, "int8"])
def test_float16_holds_activations_that_exceed_it(bits):
    """Weights scaled up until the residual stream and the feed-forward's inner numbers exceed 65504."""
    plain = golden_runs.model("dream")
    factor = {"ff.up.kernel": 2e4, "ff.down.kernel": 20.0}
    loud = {name: leaf * factor.get(name[9:], 1.0) for name, leaf in get_leaves(plain).items()}
    wide = with_leaves(plain.config, dict(loud))
    narrow = with_leaves(plain.config, {name: leaf.astype(jnp.float16) for name, leaf in loud.items()})
    if bits is not None:
        narrow = quantized(narrow, bits)
    ids = jnp.asarray(golden_forward("dream")[0])
    x = wide.embed[...][ids]
    block = wide.layers[0]  # pyright: ignore[reportIndexIssue]
    inner = jax.nn.silu(block.ff.gate(block.ff_norm(x))) * block.ff.up(block.ff_norm(x))
    stream = block.ff(block.ff_norm(x))
    assert min(float(jnp.abs(inner).max()), float(jnp.abs(stream).max())) > 65504
    logits, expected = np.asarray(forward(narrow, ids)), np.asarray(forward(wide, ids))
    assert np.isfinite(logits).all()
    assert np.sqrt(((logits - expected) ** 2).mean()) / expected.std() < (0.01 if bits is None else 0.1)
