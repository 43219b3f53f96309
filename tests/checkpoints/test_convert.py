"""Conversion, export, and everything that should come out the same."""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from orbax.checkpoint import v1 as orbax
from safetensors.numpy import load_file
from small_checkpoints import (
    GOLDEN,
    assert_same_bits,
    golden_config,
    golden_forward,
    golden_tensors,
    published_data,
    read_index,
    run_convert,
    write_folder,
    write_word_tokenizer,
)

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.huggingface.config_json import from_config_json, read_config
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.huggingface.keys import TABLES, entries
from depcap_jax.checkpoints.loading import load, save
from depcap_jax.checkpoints.storage import PARAMS
from depcap_jax.cli.commands.depcap_convert import main
from depcap_jax.models.parameters import get_leaves


def leaves_of(folder, **settings):
    return {leaf: np.asarray(value) for leaf, value in get_leaves(load(folder, **settings)[0]).items()}


def test_table_has_every_published_key_once(family):
    table = entries(from_config_json(golden_config(family)))
    assert sorted(entry.key for entry in table) == sorted(golden_tensors(family))
    assert len({entry.leaf for entry in table}) == len(table)
    assert len(set(TABLES[family].values())) == len(TABLES[family])


def test_both_ways_of_loading_give_the_same_bits(family, golden_dir, converted_dir):
    assert_same_bits(leaves_of(golden_dir / family), leaves_of(converted_dir / family))


def test_convert_load_and_export_give_back_every_bit(family, converted_dir, tmp_path):
    original = golden_tensors(family)
    export(converted_dir / family, tmp_path / "from_folder")
    assert_same_bits(load_file(tmp_path / "from_folder" / "model.safetensors"), original)
    model, _ = load(converted_dir / family)
    export(model, tmp_path / "from_model")
    assert_same_bits(load_file(tmp_path / "from_model" / "model.safetensors"), original)
    for folder in ("from_folder", "from_model"):
        again = read_config(tmp_path / folder)
        assert again == from_config_json(golden_config(family))


def test_export_keeps_the_published_config(converted_dir, tmp_path):
    export(converted_dir / "llada", tmp_path / "out", dtype="bfloat16")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written == {**golden_config("llada"), "torch_dtype": "bfloat16"}


def test_saved_model_loads_as_it_was(family, converted_dir, tmp_path):
    model, _ = load(converted_dir / family, dtype="bfloat16")
    save(model, tmp_path / "saved")
    assert_same_bits(leaves_of(tmp_path / "saved"), leaves_of(converted_dir / family, dtype="bfloat16"))


def test_table_is_that_of_the_published_checkpoint():
    folder = published_data("llada-8b-instruct")
    table = entries(read_config(folder))
    assert {entry.key for entry in table} == read_index(folder).keys()


def test_linked_files_are_followed(tmp_path, golden_dir):
    """The cache of the Hugging Face hub is made of links to files elsewhere."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(golden_dir / "llada" / name)
    assert main([str(folder), str(tmp_path / "out"), "--verify"]) == 0


@pytest.mark.parametrize("shards", [1, 3])
def test_sharded_checkpoint_equals_the_plain_one(family, shards, tmp_path, golden_dir):
    folder = write_folder(tmp_path / "hf", golden_config(family), golden_tensors(family), shards=shards)
    convert(folder, tmp_path / "out", verify=True)
    plain = leaves_of(golden_dir / family)
    assert_same_bits(leaves_of(folder), plain)
    assert_same_bits(leaves_of(tmp_path / "out"), plain)


@pytest.mark.parametrize("shards", [None, 2])
def test_bin_checkpoint_equals_the_plain_one(family, shards, tmp_path, golden_dir):
    torch = pytest.importorskip("torch", reason="a .bin checkpoint needs PyTorch, which is not installed")
    tensors = {key: torch.from_numpy(value) for key, value in golden_tensors(family).items()}
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(golden_config(family)))
    if shards is None:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        names = [f"pytorch_model-0000{number + 1}-of-0000{shards}.bin" for number in range(shards)]
        parts = [dict(list(tensors.items())[number::shards]) for number in range(shards)]
        for name, part in zip(names, parts, strict=True):
            torch.save(part, folder / name)
        weight_map = {key: name for name, part in zip(names, parts, strict=True) for key in part}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    convert(folder, tmp_path / "out", verify=True)
    assert_same_bits(leaves_of(folder), leaves_of(golden_dir / family))
    assert_same_bits(leaves_of(tmp_path / "out"), leaves_of(golden_dir / family))


def test_bfloat16_bin_keeps_its_bits(tmp_path):
    torch = pytest.importorskip("torch", reason="a .bin checkpoint needs PyTorch, which is not installed")
    tensors = {key: value.astype(ml_dtypes.bfloat16) for key, value in golden_tensors("llada").items()}
    plain = write_folder(tmp_path / "plain", golden_config("llada"), tensors)
    other = tmp_path / "bin"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(golden_config("llada")))
    half = {key: torch.from_numpy(value).bfloat16() for key, value in golden_tensors("llada").items()}
    torch.save(half, other / "pytorch_model.bin")
    assert_same_bits(leaves_of(other), leaves_of(plain))


def test_padding_rows_of_the_embedding_are_kept(tmp_path, golden_dir):
    """A config whose `vocab_size` is smaller than `embedding_size` has the same weights and logits."""
    config = {**golden_config("llada"), "vocab_size": 511, "embedding_size": 512}
    folder = write_folder(tmp_path / "hf", config, golden_tensors("llada"))
    convert(folder, tmp_path / "out")
    ids, golden = golden_forward("llada")
    for place in (folder, tmp_path / "out"):
        model, _ = load(place)
        assert (model.config.vocab_size, model.config.embedding_size) == (511, 512)
        logits = np.asarray(jax.jit(lambda model, ids: model(ids))(model, ids))
        assert np.abs(logits - golden).max() <= 1e-2


def test_tied_embeddings_have_no_head_of_their_own(tmp_path):
    tensors = golden_tensors("llada")
    del tensors["model.transformer.ff_out.weight"]
    folder = write_folder(tmp_path / "hf", {**golden_config("llada"), "weight_tying": True}, tensors)
    convert(folder, tmp_path / "out")
    export(tmp_path / "out", tmp_path / "back")
    assert load(tmp_path / "out")[0].head is None
    assert_same_bits(load_file(tmp_path / "back" / "model.safetensors"), tensors)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_is_cast_once_and_kept_by_default(dtype, golden_dir, tmp_path):
    assert main([str(golden_dir / "dream"), str(tmp_path / "half"), "--dtype", dtype]) == 0
    halved = leaves_of(tmp_path / "half")
    assert {value.dtype.name for value in halved.values()} == {dtype}
    assert_same_bits(halved, leaves_of(golden_dir / "dream", dtype=dtype))
    export(tmp_path / "half", tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "again", verify=True)
    assert_same_bits(leaves_of(tmp_path / "again"), halved)


def test_mixed_source_becomes_float32(tmp_path):
    tensors = golden_tensors("llada")
    mixed = {key: value if "norm" in key else value.astype(np.float16) for key, value in tensors.items()}
    report = convert(write_folder(tmp_path / "hf", golden_config("llada"), mixed), tmp_path / "out")
    assert report.dtype == "float32"


def test_orbax_itself_reads_the_parameters(family, converted_dir, golden_dir):
    tree = orbax.load(str(converted_dir / family / PARAMS))
    expected = leaves_of(golden_dir / family)
    assert np.array_equal(tree["embed"], expected["embed"])
    assert np.array_equal(tree["layers"]["2"]["ff"]["down"]["kernel"], expected["layers.2.ff.down.kernel"])


def test_target_says_from_what_it_was_made(converted_dir, golden_dir):
    source = json.loads((converted_dir / "llada" / "source.json").read_text())
    files = {file["name"]: file for file in source["files"]}
    weights = (golden_dir / "llada" / "model.safetensors").read_bytes()
    assert files["model.safetensors"]["bytes"] == len(weights)
    assert files["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert files.keys() == {"config.json", "model.safetensors"}
    assert source["config"] == golden_config("llada")


def test_command_reports_and_stays_quiet_without_a_terminal(golden_dir, tmp_path):
    result = run_convert(golden_dir / "llada", tmp_path / "out", "--verify")
    assert result.returncode == 0
    assert "30" in result.stdout
    assert "207,296" in result.stdout
    assert "peak memory" in result.stdout
    assert "verified" in result.stdout
    assert result.stderr.count("\n") == 1
    assert "warning" in result.stderr
    assert "no tokenizer" in result.stderr


def test_progress_counts_bytes_to_the_end(golden_dir, tmp_path):
    told = []
    convert(golden_dir / "llada", tmp_path / "out", verify=True, progress=lambda *now: told.append(now))
    for phase in ("converting", "verifying"):
        done = [(count, total) for what, count, total in told if what == phase]
        assert done[0][0] == 0
        assert done[-1] == (829_184, 829_184)
        assert done == sorted(done)


def test_bar_shows_bytes_rate_and_time_left_on_a_terminal(golden_dir, tmp_path, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([str(golden_dir / "llada"), str(tmp_path / "out"), "--verify"]) == 0
    for phase in ("converting", "verifying"):
        last = terminal.getvalue().split(f"{phase}:")[-1].split("\n")[0]
        assert re.search(r"829k/829k \[\d\d:\d\d<\d\d:\d\d, +[\d.]+[kM]?B/s\]", last)


def test_overwrite_replaces_a_checkpoint_and_its_tokenizer(tmp_path):
    folder = write_folder(tmp_path / "hf", golden_config("llada"), golden_tensors("llada"))
    assert main([str(folder), str(tmp_path / "out")]) == 0
    write_word_tokenizer(folder)
    assert main([str(folder), str(tmp_path / "out"), "--overwrite", "--dtype", "bfloat16"]) == 0
    model, tokenizer = load(tmp_path / "out")
    assert model.dtype == ml_dtypes.bfloat16
    assert tokenizer is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def test_export_is_a_command_too(converted_dir, tmp_path, capsys):
    assert main(["--export", str(converted_dir / "dream"), str(tmp_path / "hf")]) == 0
    assert "exported" in capsys.readouterr().out
    assert_same_bits(load_file(tmp_path / "hf" / "model.safetensors"), golden_tensors("dream"))
    assert main(["--export", str(GOLDEN / "dream"), str(tmp_path / "other")]) == 2
    assert "no converted checkpoint" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
