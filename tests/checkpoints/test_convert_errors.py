"""Every bad input: exit status 2, one line that says what and where, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_checkpoints import (
    everything_under,
    golden_config,
    golden_tensors,
    read_index,
    run_convert,
    write_folder,
    write_index,
)

from depcap_jax.checkpoints import conversion
from depcap_jax.cli.commands.depcap_convert import main

WTE = "model.transformer.wte.weight"
UP = "model.transformer.blocks.1.up_proj.weight"
FIRST = "model-00001-of-00002.safetensors"


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def edit_tensors(folder, change, name="model.safetensors"):
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)


def raw_header(path: Path, header: str, data: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)


def cut(path: Path, keep: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


def misplace(folder):
    index = read_index(folder)
    shard = next(name for name in set(index.values()) if name != index[WTE])
    write_index(folder, {**index, WTE: shard})


def duplicate(folder):
    index = read_index(folder)
    other = next(name for name in set(index.values()) if name != index[WTE])
    edit_tensors(folder, lambda t: t.update({WTE: np.zeros((512, 64), np.float32)}), other)


def move_out(folder, name):
    """Puts a shard, whole as it is, elsewhere, and lets the index say where."""
    shutil.move(folder / FIRST, folder.parent / "elsewhere.safetensors")
    index = read_index(folder)
    write_index(folder, {key: name if shard == FIRST else shard for key, shard in index.items()})


# What is done to a whole checkpoint (one file), and the words that the line must have.
BROKEN_FILE = {
    "unknown tensor": (
        lambda f: edit_tensors(f, lambda t: t.update(extra=np.zeros(3, np.float32))),
        ["unknown", "'extra'", "model.safetensors"],
    ),
    "missing tensor": (lambda f: edit_tensors(f, lambda t: t.pop(UP)), ["missing", UP, "[160, 64]"]),
    "wrong shape": (
        lambda f: edit_tensors(f, lambda t: t.update({UP: t[UP].T.copy()})),
        [UP, "model.safetensors", "[64, 160]", "[160, 64]"],
    ),
    "wrong dtype": (
        lambda f: edit_tensors(f, lambda t: t.update({UP: t[UP].astype(np.int32)})),
        [UP, "model.safetensors", "I32", "float32, bfloat16, float16"],
    ),
    "more layers than the config": (
        lambda f: edit_config(f, n_layers=2),
        ["unknown", "blocks.2", "2 layers"],
    ),
    "fewer layers than the config": (lambda f: edit_config(f, n_layers=4), ["missing", "blocks.3"]),
    "truncated": (lambda f: cut(f / "model.safetensors", 0.6), ["model.safetensors", "truncated or corrupt"]),
    "cut in the header": (lambda f: cut(f / "model.safetensors", 0.001), ["model.safetensors", "truncated"]),
    "empty file": (lambda f: cut(f / "model.safetensors", 0), ["model.safetensors", "truncated or corrupt"]),
    "no safetensors": (
        lambda f: (f / "model.safetensors").write_bytes(b"hello, this is not it" * 9),
        ["model.safetensors", "corrupt"],
    ),
    "duplicate in the header": (
        lambda f: raw_header(
            f / "model.safetensors",
            '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            '"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            b"\0" * 8,
        ),
        ["model.safetensors", "corrupt"],
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ["no weights", "model.safetensors"]),
    "no config": (lambda f: (f / "config.json").unlink(), ["config.json", "no such file"]),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), ["config.json", "not valid JSON"]),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), ["config.json", "object"]),
    "ALiBi": (lambda f: edit_config(f, alibi=True), ["alibi", "True"]),
    "another model": (lambda f: edit_config(f, model_type="gpt2"), ["model_type", "'gpt2'", "llada"]),
}

# The same for a checkpoint of two files with an index.
BROKEN_SHARDS = {
    "index leaves the folder": (
        lambda f: move_out(f, "../elsewhere.safetensors"),
        ["index.json", "'../elsewhere.safetensors'", "file in"],
    ),
    "index names an absolute path": (
        lambda f: move_out(f, str((f.parent / "elsewhere.safetensors").absolute())),
        ["index.json", "elsewhere.safetensors", "file in"],
    ),
    "index names no text": (
        lambda f: write_index(f, {**read_index(f), WTE: ["x"]}),  # type: ignore[dict-item]  # the damage
        ["index.json", "['x']"],
    ),
    "absent shard": (lambda f: (f / FIRST).unlink(), ["index.json", FIRST, "not in"]),
    "truncated shard": (lambda f: cut(f / FIRST, 0.5), [FIRST, "truncated or corrupt"]),
    "duplicate tensor": (duplicate, ["duplicate", WTE, "model-0000"]),
    "tensor in another shard": (misplace, [WTE, "index.json", "places it"]),
    "tensor that no shard has": (
        lambda f: write_index(f, {**read_index(f), "ghost": FIRST}),
        ["missing", "'ghost'", FIRST],
    ),
    "tensor that the index lacks": (
        lambda f: write_index(f, {k: v for k, v in read_index(f).items() if k != WTE}),
        ["unknown", WTE, "does not list it"],
    ),
    "index is no JSON": (
        lambda f: (f / "model.safetensors.index.json").write_text("{,"),
        ["index.json", "JSON"],
    ),
    "index without a map": (
        lambda f: (f / "model.safetensors.index.json").write_text("{}"),
        ["index.json", "weight_map"],
    ),
    "duplicate in the index": (
        lambda f: (f / "model.safetensors.index.json").write_text(
            f'{{"weight_map": {{"{WTE}": "{FIRST}", "{WTE}": "{FIRST}"}}}}'
        ),
        ["duplicate", WTE, "index.json"],
    ),
}


def refuse(arguments, words, capsys, untouched: Path):
    """Runs the command in this process; checks its status, its line, and that a folder did not change."""
    before = everything_under(untouched)
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exit:  # as argparse ends
        status = exit.code
    assert status == 2
    line = capsys.readouterr().err
    assert line.startswith("depcap-convert: error: ")
    assert line.count("\n") == 1
    for word in words:
        assert word in line, line
    assert everything_under(untouched) == before


@pytest.mark.parametrize("name", [*BROKEN_FILE, *BROKEN_SHARDS])
def test_broken_source(name, tmp_path, capsys):
    shards = None if name in BROKEN_FILE else 2
    folder = write_folder(tmp_path / "hf", golden_config("llada"), golden_tensors("llada"), shards=shards)
    damage, words = (BROKEN_FILE | BROKEN_SHARDS)[name]
    damage(folder)
    refuse([folder, tmp_path / "new" / "out"], words, capsys, tmp_path)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent", "out"], ["absent", "no such folder"]),
        (["hf/config.json", "out"], ["config.json", "is a file"]),
        (["hf", "hf"], ["hf", "source"]),
        (["hf", "."], ["source"]),
        (["hf", "out", "--dtype", "int8"], ["int8", "float32"]),
        (["hf"], ["TARGET"]),
        (["hf", "out", "--fast"], ["--fast"]),
        (["hf", "full"], ["full", "exists"]),
        (["hf", "full", "--overwrite"], ["full", "no converted checkpoint"]),
        (["hf", "full/note"], ["note", "exists"]),
        (["hf", "full/note/out"], ["note"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_arguments(arguments, words, tmp_path, capsys, monkeypatch):
    write_folder(tmp_path / "hf", golden_config("llada"), golden_tensors("llada"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("precious")
    monkeypatch.chdir(tmp_path)
    refuse(arguments, words, capsys, tmp_path)


def test_number_beyond_float16(tmp_path, capsys):
    tensors = golden_tensors("llada")
    tensors[UP][3, 4] = 1e6
    folder = write_folder(tmp_path / "hf", golden_config("llada"), tensors)
    refuse([folder, tmp_path / "out", "--dtype", "float16"], [UP, "1e+06", "65504"], capsys, tmp_path)
    assert main([str(folder), str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0


def test_disk_that_is_too_small(golden_dir, tmp_path, capsys, monkeypatch):
    usage = shutil._ntuple_diskusage(100, 90, 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    words = ["829,184 bytes are needed", "10 are free"]
    refuse([golden_dir / "llada", tmp_path / "out"], words, capsys, tmp_path)


@contextlib.contextmanager
def small_files():
    """No file may grow beyond 100 kB: stands in for a disk that is full, where a write fails half-way."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100 << 10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("overwrite", [False, True])
def test_disk_that_fills_up_while_writing(overwrite, converted_dir, golden_dir, tmp_path, capsys):
    target = tmp_path / "out"
    if overwrite:
        shutil.copytree(converted_dir / "llada", target)
    options = ["--overwrite"] if overwrite else []
    with small_files():
        refuse([golden_dir / "llada", target, *options], ["cannot write"], capsys, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if overwrite else [])


def test_full_disk_is_called_so(golden_dir, tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise ValueError("RESOURCE_EXHAUSTED: Error writing: No space left on device [source locations=...]")

    monkeypatch.setattr(conversion.ParameterWriter, "finish", fail)
    refuse([golden_dir / "llada", tmp_path / "out"], ["the disk is full"], capsys, tmp_path)


def test_folder_that_may_not_be_written(golden_dir, tmp_path, capsys):
    (tmp_path / "locked").mkdir(mode=0o500)
    if os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("whoever runs this, as root does, may write everywhere")
    refuse([golden_dir / "llada", tmp_path / "locked" / "out"], ["locked"], capsys, tmp_path)


def test_verify_finds_a_tensor_that_reads_back_otherwise(golden_dir, tmp_path, capsys, monkeypatch):
    real = conversion.HuggingFaceSource.read

    def read_wrongly(self, leaf, dtype, index=None):
        values = real(self, leaf, dtype, index)
        if leaf == "layers.1.ff.up.kernel":
            values[5, 7] += 1
        return values

    monkeypatch.setattr(conversion.HuggingFaceSource, "read", read_wrongly)
    refuse([golden_dir / "llada", tmp_path / "out", "--verify"], ["layers.1.ff.up.kernel"], capsys, tmp_path)


def test_absent_tokenizer_is_a_warning(golden_dir, tmp_path, capsys):
    assert main([str(golden_dir / "llada"), str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert "warning" in captured.err
    assert "tokenizer.json" in captured.err


def test_bin_without_torch_says_what_to_install(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(golden_config("llada")))
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuse([folder, tmp_path / "out"], ["pytorch_model.bin", "depcap_jax[torch]"], capsys, tmp_path)


def test_corrupt_bin(tmp_path, capsys):
    pytest.importorskip("torch", reason="a .bin checkpoint needs PyTorch, which is not installed")
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(golden_config("llada")))
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04 no archive")
    refuse([folder, tmp_path / "out"], ["pytorch_model.bin", "truncated or corrupt"], capsys, tmp_path)


def test_no_traceback_in_a_process_of_its_own(tmp_path):
    result = run_convert(tmp_path / "absent", tmp_path / "out")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1
