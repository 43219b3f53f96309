"""The transformer against the authors' PyTorch models, and its own promises."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_checkpoints import golden_config, golden_forward, golden_tensors, published_data, write_folder

from depcap_jax.checkpoints.loading import load
from depcap_jax.models import ConfigError, ModelConfig, Transformer
from depcap_jax.models.parameters import get_leaves

LLADA_8B = {
    "model_type": "llada",
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 32,
    "n_layers": 32,
    "mlp_hidden_size": 12288,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "max_sequence_length": 4096,
    "rope_theta": 500000.0,
    "weight_tying": False,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
    "mask_token_id": 126336,
}
DREAM_7B = {
    "model_type": "Dream",
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 28,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": 151643,
    "pad_token_id": 151643,
    "mask_token_id": 151666,
}

forward = jax.jit(lambda model, ids, valid=None: model(ids, valid))
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
    ("published", "count"), [(LLADA_8B, 8_015_581_184), (DREAM_7B, 7_615_616_512)], ids=["llada", "dream"]
)
def test_full_size_has_the_published_number_of_parameters(published, count):
    model = Transformer.abstract(from_config_json(published), dtype=jnp.bfloat16)
    leaves = get_leaves(model).values()
    assert sum(math.prod(leaf.shape) for leaf in leaves) == count
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}


def test_published_config_of_llada_is_read():
    config = read_config(published_data("llada-8b-instruct"))
    assert config == from_config_json(LLADA_8B)
    assert config.eos_token_ids == (126081, 126348)


@pytest.mark.parametrize(
    ("published", "name", "value"),
    [
        (LLADA_8B, "alibi", True),
        (LLADA_8B, "rope", False),
        (LLADA_8B, "block_type", "sequential"),
        (LLADA_8B, "block_group_size", 2),
        (LLADA_8B, "activation_type", "gelu"),
        (LLADA_8B, "layer_norm_type", "default"),
        (LLADA_8B, "include_bias", True),
        (LLADA_8B, "attention_layer_norm", True),
        (LLADA_8B, "rope_scaling", {"type": "linear", "factor": 2.0}),
        (LLADA_8B, "model_type", "llama"),
        (LLADA_8B, "n_heads", 31),
        (LLADA_8B, "n_layers", 0),
        (LLADA_8B, "d_model", "4096"),
        (LLADA_8B, "mask_token_id", 126464),
        (DREAM_7B, "hidden_act", "gelu"),
        (DREAM_7B, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        (DREAM_7B, "use_sliding_window", True),
        (DREAM_7B, "num_attention_heads", 27),
        (DREAM_7B, "eos_token_id", -1),
    ],
)
def test_config_refuses_by_name_and_value(published, name, value):
    with pytest.raises(ConfigError) as refusal:
        from_config_json({**published, name: value})
    assert name.replace("n_layers", "num_layers") in str(refusal.value)  # our word for it
    assert (repr(value) if not isinstance(value, dict) else "factor") in str(refusal.value)


@pytest.mark.parametrize("name", ["d_model", "n_heads", "n_layers", "vocab_size", "mask_token_id"])
def test_config_names_what_is_missing(name):
    with pytest.raises(ConfigError, match=repr(name)):
        from_config_json({key: value for key, value in LLADA_8B.items() if key != name})


def test_config_survives_both_round_trips(family):
    config = from_config_json(golden_config(family))
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert from_config_json(to_config_json(config)) == config


def test_cached_pass_equals_plain_pass(family, golden_dir):
    model, _ = load(golden_dir / family)
    ids = jnp.asarray(golden_forward(family)[0])
    batch, length = ids.shape
    valid = jnp.ones(ids.shape, bool)
    plain, _ = hidden(model, ids, valid=valid)
    full, cache = hidden(model, ids, valid=valid, cache=model.init_cache(batch, length))
    np.testing.assert_allclose(full, plain, atol=1e-4)
    start = jnp.array([5, 11])
    part_ids = jnp.stack([ids[row, begin : begin + 9] for row, begin in enumerate([5, 11])])
    part, _ = hidden(model, part_ids, valid=valid, start=start, cache=cache)
    expected = jnp.stack([plain[row, begin : begin + 9] for row, begin in enumerate([5, 11])])
    np.testing.assert_allclose(part, expected, atol=1e-4)


@pytest.mark.parametrize("length", [8, 37], ids=["part", "whole canvas"])
def test_what_may_not_be_written_keeps_its_keys_and_values(length, golden_dir):
    model, _ = load(golden_dir / "llada")
    ids = jnp.asarray(golden_forward("llada")[0])
    valid = jnp.ones(ids.shape, bool)
    _, cache = hidden(model, ids, valid=valid, cache=model.init_cache(*ids.shape))
    others = (ids[:, :length] + 1) % 500
    start = jnp.zeros(2, jnp.int32) if length < ids.shape[1] else None
    write = jnp.zeros(others.shape, bool).at[:, 3].set(True)
    _, updated = hidden(model, others, valid=valid, start=start, cache=cache, write=write)
    assert cache is not None
    assert updated is not None
    changed = np.asarray((updated[0].k != cache[0].k).any(axis=(0, 1, 2)))
    assert changed.nonzero()[0].tolist() == [3]


def test_invalid_positions_are_not_seen(family, golden_dir):
    model, _ = load(golden_dir / family)
    ids, golden = golden_forward(family)
    padded = np.concatenate([ids, np.full((2, 6), 7, ids.dtype)], axis=1)
    valid = jnp.arange(padded.shape[1]) < ids.shape[1]
    logits = forward(model, padded, jnp.broadcast_to(valid, padded.shape))[:, : ids.shape[1]]
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


def test_head_alone_takes_chosen_positions(family, golden_dir):
    model, _ = load(golden_dir / family)
    ids, golden = golden_forward(family)
    states, _ = hidden(model, ids, valid=jnp.ones(ids.shape, bool))
    chosen = np.asarray(model.logits(states[:, [3, 30]]))
    assert np.abs(chosen - golden[:, [3, 30]]).max() <= 1e-2


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
    assert few.init_cache(1, 8)[0].k.shape[1] == 2
    ids, _ = golden_forward("llada")
    np.testing.assert_allclose(forward(few, ids), forward(many, ids), atol=1e-2)
