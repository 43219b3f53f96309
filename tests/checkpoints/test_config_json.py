"""What a published `config.json` says: read, written, and refused by name."""

from __future__ import annotations

import pytest
from small_checkpoints import DREAM_7B, LLADA_8B, golden_config, published_data

from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.config_json import from_config_json, read_config, to_config_json
from depcap_jax.models import ConfigError


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
        (LLADA_8B, "n_layers", True),
        (LLADA_8B, "rope_theta", "high"),
        (LLADA_8B, "weight_tying", "false"),
        (LLADA_8B, "mlp_ratio", 4.5),
        (DREAM_7B, "hidden_act", "gelu"),
        (DREAM_7B, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        (DREAM_7B, "use_sliding_window", True),
        (DREAM_7B, "num_attention_heads", 27),
        (DREAM_7B, "eos_token_id", -1),
        (DREAM_7B, "eos_token_id", [151643, "151645"]),
        (DREAM_7B, "rms_norm_eps", [1e-6]),
    ],
)
def test_config_refuses_by_name_and_value(published, name, value):
    with pytest.raises(ConfigError) as refusal:
        from_config_json({**published, name: value})
    ours = name if isinstance(value, bool) else name.replace("n_layers", "num_layers")  # our word for it
    assert ours in str(refusal.value)
    shown = "factor" if isinstance(value, dict) else repr(value[-1] if isinstance(value, list) else value)
    assert shown in str(refusal.value)


@pytest.mark.parametrize(
    ("published", "name"),
    [
        *((LLADA_8B, name) for name in ("d_model", "n_heads", "n_layers", "vocab_size")),
        *((LLADA_8B, name) for name in ("model_type", "eos_token_id", "max_sequence_length")),
        *((DREAM_7B, name) for name in ("hidden_size", "intermediate_size", "eos_token_id")),
    ],
)
def test_config_names_what_is_missing(published, name):
    for content in (
        {key: value for key, value in published.items() if key != name},
        {**published, name: None},
    ):
        with pytest.raises(ConfigError, match=f"lacks {name!r}"):
            from_config_json(content)


def test_empty_list_of_ends_is_none():
    with pytest.raises(ConfigError, match="lacks 'eos_token_id'"):
        from_config_json({**DREAM_7B, "eos_token_id": []})


@pytest.mark.parametrize(
    ("changes", "ff_width", "num_kv_heads"),
    [
        ({"mlp_hidden_size": None}, 16384, 32),
        ({"mlp_hidden_size": None, "mlp_ratio": 3}, 12288, 32),
        ({"n_kv_heads": None}, 12288, 32),
        ({"n_kv_heads": None, "multi_query_attention": True}, 12288, 1),
        ({"n_kv_heads": 8, "multi_query_attention": True}, 12288, 8),
    ],
)
def test_absent_sizes_of_llada_follow_from_others(changes, ff_width, num_kv_heads):
    config = from_config_json({**LLADA_8B, **changes})
    assert (config.ff_width, config.num_kv_heads) == (ff_width, num_kv_heads)


def test_absent_settings_are_those_of_the_family():
    llada, dream = from_config_json(LLADA_8B), from_config_json(DREAM_7B)
    assert (llada.norm_eps, llada.qkv_bias, llada.head_dim, llada.max_length) == (1e-5, False, 128, 4096)
    assert (dream.norm_eps, dream.qkv_bias, dream.head_dim, dream.max_length) == (1e-6, True, 128, 2048)
    assert dream.eos_token_ids == (151643, 151645)


@pytest.mark.parametrize(
    "changes",
    [{}, {"eos_token_id": [1, 2]}, {"weight_tying": True, "tie_word_embeddings": True}],
    ids=["as published", "two ends", "tied"],
)
def test_written_config_reads_back(family, changes):
    config = from_config_json({**golden_config(family), **changes})
    assert from_config_json(to_config_json(config)) == config


def test_name_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llada", "d_model": 64, "d_model": 128}')
    with pytest.raises(CheckpointError, match="duplicate name 'd_model'") as refusal:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in str(refusal.value)
