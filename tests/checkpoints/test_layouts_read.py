"""What the files of the newer layouts tell, what they leave out, and what is said then."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_checkpoints import (
    ILLADA_8B,
    LAYOUTS,
    QWEN2_05B,
    QWEN3_06B,
    assert_same_bits,
    golden_config,
    golden_tensors,
    write_folder,
    write_word_tokenizer,
)

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.config_json import from_config_json, read_config, to_config_json
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.huggingface.keys import TABLES, entries
from depcap_jax.checkpoints.loading import load, open_checkpoint
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.cli import main
from depcap_jax.models import ConfigError
from depcap_jax.text.codec import require_tokenizer

QWEN2 = {**QWEN2_05B, "mask_token_id": 151665, "predicts_next": True}


def folder_with(tmp_path, config, **tokenizer):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if tokenizer:
        write_word_tokenizer(tmp_path, **tokenizer)
    return tmp_path


def test_published_configs_are_read():
    illada = from_config_json(ILLADA_8B)
    assert (illada.mask_token_id, illada.predicts_next, illada.tie_embeddings) == (5, False, True)
    assert (illada.num_kv_heads, illada.head_dim, illada.max_length) == (8, 128, 8192)
    assert (illada.pad_token_id, illada.eos_token_ids) == (1, (2,))
    qwen2 = from_config_json(QWEN2)
    assert (qwen2.qkv_bias, qwen2.qk_norm, qwen2.head_dim) == (True, False, 64)
    assert (qwen2.predicts_next, qwen2.max_length) == (True, 32768)
    assert qwen2.eos_token_ids == (151643, 151645)
    qwen3 = from_config_json(QWEN3_06B)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)
    assert (qwen3.mask_token_id, qwen3.predicts_next) == (151669, False)
    assert qwen3.eos_token_ids == (151645, 151643)


@pytest.mark.parametrize(
    ("published", "name", "value"),
    [
        (ILLADA_8B, "attention_bias", True),
        (ILLADA_8B, "mlp_bias", True),
        (ILLADA_8B, "layer_norm_eps", 1e-5),
        (QWEN2, "use_sliding_window", True),
        (QWEN2, "layer_types", ["full_attention", "sliding_attention"]),
        (QWEN2, "num_attention_heads", 13),
        (QWEN2, "predicts_next", 1),
        (QWEN3_06B, "attention_bias", True),
        (QWEN3_06B, "hidden_act", "gelu"),
        (QWEN3_06B, "head_dim", 127),
        (QWEN3_06B, "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        (QWEN3_06B, "rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}),
    ],
)
def test_config_refuses_by_name_and_value(published, name, value):
    with pytest.raises(ConfigError) as refusal:
        from_config_json({**published, name: value})
    assert name.replace("rope_parameters", "rope_scaling") in str(refusal.value)
    assert str(value) in str(refusal.value)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default", "factor": 1.0}},
    ],
)
def test_plain_rotations_are_read_in_any_form(rope):
    assert from_config_json({**QWEN3_06B, **rope}).rope_theta == 5e5


@pytest.mark.parametrize("published", [ILLADA_8B, QWEN2, {**QWEN2, "predicts_next": False}, QWEN3_06B])
def test_written_config_reads_back(published):
    config = from_config_json(published)
    written = to_config_json(config)
    assert from_config_json(written) == config
    assert written["model_type"].endswith(("illada", "qwen2", "qwen3"))


def test_head_size_is_free_of_the_width():
    config = from_config_json({**QWEN3_06B, "num_attention_heads": 24, "head_dim": 48})
    assert (config.num_heads, config.head_dim, config.width) == (24, 48, 1024)


def test_mask_comes_from_the_file_then_the_tokenizer_then_the_table(tmp_path):
    """The word tokenizer's "world" has id 3."""
    here = folder_with(tmp_path, {**QWEN3_06B, "mask_token_id": 7}, mask_token="world")
    assert read_config(here).mask_token_id == 7
    assert read_config(here, mask_token_id=9).mask_token_id == 9
    folder_with(tmp_path, QWEN3_06B)
    assert read_config(here).mask_token_id == 3
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert read_config(here).mask_token_id == 151669


@pytest.mark.parametrize("where", ["tokenizer_config.json", "special_tokens_map.json"])
def test_mask_of_a_byte_level_tokenizer_is_found(where, tmp_path):
    """Qwen's own files: a vocabulary of bytes, merges, and tokens that were added behind them."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    files: dict[str, Any] = {
        "vocab.json": {char: index for index, char in enumerate(alphabet)} | {"he": 256},
        "added_tokens.json": {"<|endoftext|>": 257, "<|im_end|>": 258, "<M>": 259},
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"},
        "special_tokens_map.json": {},
    }
    files[where]["mask_token"] = "<M>"
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    folder = folder_with(tmp_path, {**QWEN2_05B, "predicts_next": False})
    assert read_config(folder).mask_token_id == 259
    assert require_tokenizer(load_tokenizer(folder))("hey<M>")["input_ids"] == [256, 88, 259]


def test_end_of_text_comes_from_the_tokenizer_too(tmp_path):
    config = {name: value for name, value in ILLADA_8B.items() if name != "eos_token_id"}
    assert read_config(folder_with(tmp_path, config, mask_token="hello")).eos_token_ids == (1,)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="lacks 'eos_token_id'"):
        read_config(tmp_path)


def test_a_repository_is_known_by_its_name(tmp_path):
    config = read_config(folder_with(tmp_path, QWEN2_05B), repository="fredzzp/open-dcoder-0.5B")
    assert (config.mask_token_id, config.predicts_next) == (151665, True)
    folder_with(tmp_path, QWEN2_05B, mask_token="world")
    assert read_config(tmp_path, repository="fredzzp/open-dcoder-0.5B").mask_token_id == 3
    with pytest.raises(CheckpointError, match="sees no block behind its own"):
        read_config(tmp_path, repository="dllm-hub/Qwen3-0.6B-diffusion-bd3lm-v0.1")


@pytest.mark.parametrize(
    ("hints", "asked", "not_asked"),
    [
        ({}, ["mask_token_id (--mask-id)", "predicts_next (--predicts-next"], []),
        ({"mask_token_id": 5}, ["predicts_next (--predicts-next or --no-predicts-next)"], ["--mask-id"]),
        ({"predicts_next": False}, ["mask_token_id (--mask-id)"], ["--predicts-next"]),
    ],
)
def test_what_nothing_tells_is_asked_for_in_one_sentence(hints, asked, not_asked, golden_dir):
    with pytest.raises(CheckpointError, match="'qwen2' does not tell") as refusal:
        load(golden_dir / "qwen2", **hints)
    assert all(words in str(refusal.value) for words in asked)
    assert not any(words in str(refusal.value) for words in not_asked)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_table_has_every_key_once(layout):
    table = entries(from_config_json({**golden_config(layout), **LAYOUTS[layout]}))
    assert {entry.key for entry in table} == golden_tensors(layout).keys() - {"lm_head.weight"}
    assert len(set(TABLES[layout].values())) == len(TABLES[layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_convert_and_export_give_back_every_bit(layout, golden_dir, tmp_path):
    """And a config.json that now tells everything; the copy of a tied embedding is left out."""
    convert(golden_dir / layout, tmp_path / "out", verify=True, **LAYOUTS[layout])
    config = open_checkpoint(tmp_path / "out").config
    export(tmp_path / "out", tmp_path / "back")
    export(load(tmp_path / "out")[0], tmp_path / "from_model")
    expected = {key: value for key, value in golden_tensors(layout).items() if key != "lm_head.weight"}
    for folder in ("back", "from_model"):
        assert_same_bits(load_file(tmp_path / folder / "model.safetensors"), expected)
        assert read_config(tmp_path / folder) == config
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert written["model_type"] == golden_config(layout)["model_type"]


def test_a_second_embedding_must_equal_the_first(tmp_path, capsys):
    tensors = golden_tensors("qwen3")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].copy()
    tensors["lm_head.weight"][95, 31] += 1
    folder = write_folder(tmp_path / "hf", golden_config("qwen3"), tensors)
    for attempt in (lambda: load(folder), lambda: convert(folder, tmp_path / "out")):
        with pytest.raises(CheckpointError, match=r"'lm_head\.weight'.*differs from 'model\.embed_tokens"):
            attempt()
    assert not (tmp_path / "out").exists()
    untied = write_folder(tmp_path / "own", {**golden_config("qwen3"), "tie_word_embeddings": False}, tensors)
    head = load(untied)[0].head
    assert head is not None
    assert np.array_equal(head[...], tensors["lm_head.weight"].T)


def test_hints_hold_for_a_converted_checkpoint(converted_dir):
    assert load(converted_dir / "llada", predicts_next=True, mask_token_id=3)[0].config.predicts_next
    with pytest.raises(CheckpointError, match=r"mask_token_id must be an id in \[0, 512\), got 512"):
        load(converted_dir / "llada", mask_token_id=512)
    with pytest.raises(CheckpointError, match="predicts_next must be true or false, got 'no'"):
        load(converted_dir / "llada", predicts_next="no")  # pyright: ignore[reportArgumentType]


def test_commands_take_the_hints(golden_dir, tmp_path, capsys):
    path, hints = str(golden_dir / "qwen2"), ["--mask-id", "5", "--no-predicts-next"]
    assert main(["info", "--model", path, "--gen-length", "8", *hints]) == 0
    said = capsys.readouterr().out
    assert "qwen2" in said
    assert "4 heads of 8, 2 for keys and values" in said
    assert "mask 5" in said
    assert "the position itself" in said
    assert main(["info", "--model", path]) != 0
    assert "pass mask_token_id (--mask-id)" in capsys.readouterr().err
    assert main(["convert", path, str(tmp_path / "out"), *hints]) == 0
    assert open_checkpoint(tmp_path / "out").config.predicts_next is False
    capsys.readouterr()
    assert main(["convert", "--export", str(tmp_path / "out"), str(tmp_path / "hf"), *hints]) != 0
    assert "not for --export" in capsys.readouterr().err
