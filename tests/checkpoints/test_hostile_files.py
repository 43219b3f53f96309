"""Files that are none, or have no end: refused by name and at once, never waited for."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from small_checkpoints import (
    at_once,
    chunk_of,
    edit_manifest,
    golden_config,
    golden_tensors,
    write_folder,
    write_word_tokenizer,
)

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.loading import describe, load


def make_socket(path: Path) -> None:
    # A socket's path may have 107 characters at most.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as it:
            it.bind(path.name)
    finally:
        os.chdir(here)


def make_endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # of which nothing is on the disk


HOSTILE = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "too large": make_endless,
}

PUBLISHED = [
    "config.json",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
]


def put(kind: str, path: Path) -> None:
    path.unlink(missing_ok=True)
    HOSTILE[kind](path)


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A Hugging Face folder of two shards with a tokenizer; not to be written to."""
    folder = tmp_path_factory.mktemp("published") / "hf"
    write_folder(folder, golden_config("llada"), golden_tensors("llada"), shards=2)
    write_word_tokenizer(folder)
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("kind", HOSTILE)
def test_published_file_that_is_none(kind, name, published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "hf")
    put(kind, folder / name)
    for act in (load, lambda source: convert(source, tmp_path / "out")):
        with at_once(), pytest.raises(CheckpointError) as refusal:
            act(folder)
        assert str(folder / name) in str(refusal.value)
        assert "\n" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def stored(published, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("stored") / "out"
    convert(published, target)
    return target


@pytest.mark.parametrize("kind", HOSTILE)
def test_converted_file_that_is_none(kind, stored, tmp_path):
    chunk = chunk_of(stored, "norm.scale").relative_to(stored)
    names = ["checkpoint.json", "tokenizer/tokenizer.json", chunk, chunk.parent.parent / "zarr.json"]
    for number, name in enumerate(names):
        folder = shutil.copytree(stored, tmp_path / str(number))
        put(kind, folder / name)
        with at_once(), pytest.raises(CheckpointError) as refusal:
            load(folder)
        said = "norm.scale" if name == chunk else str(folder / name)
        assert said in str(refusal.value)


@pytest.mark.parametrize("count", [4, 1000, 10**6, 10**12])
def test_layers_are_counted_before_they_are_built(count, published, stored, tmp_path):
    folder = shutil.copytree(published, tmp_path / "hf")
    (folder / "config.json").write_text(json.dumps({**golden_config("llada"), "n_layers": count}))
    converted = shutil.copytree(stored, tmp_path / "stored")
    edit_manifest(converted, lambda manifest: manifest["config"].update(num_layers=count))
    for place, word in ((folder, "layers"), (converted, "layers")):
        with at_once(5), pytest.raises(CheckpointError, match=word):
            load(place)
    # Nothing but the config, in which a million is as absurd.
    (tmp_path / "alone").mkdir()
    shutil.copy(folder / "config.json", tmp_path / "alone")
    with at_once(5), contextlib.suppress(CheckpointError):
        assert describe(tmp_path / "alone").config.num_layers < 10**4


def nest(folder: Path) -> None:
    """3,000 folders in each other, more than Python's functions call themselves; made from the inside out."""
    inner = folder.with_name("inner")
    inner.mkdir()
    for _ in range(3_000):
        outer = folder.with_name("outer")
        outer.mkdir()
        inner.rename(outer / "d")
        outer.rename(inner)
    inner.rename(folder)


def remove(folder: Path) -> None:
    """What `nest` made, which pytest could not remove."""
    folder = folder.rename(folder.with_name("rest"))
    while (inner := folder / "d").exists():
        inner = inner.rename(folder.with_name("next"))
        folder.rmdir()
        folder = inner.rename(folder)
    folder.rmdir()


@pytest.mark.parametrize("where", ["params", "tokenizer", "chunks"])
def test_folders_without_end(where, stored, tmp_path):
    folder = shutil.copytree(stored, tmp_path / "stored")
    deep = (chunk_of(folder, "norm.scale").parent if where == "chunks" else folder / where) / "deep"
    nest(deep)
    try:
        with at_once(), pytest.raises(CheckpointError, match="nested too deeply") as refusal:
            describe(folder)
        assert str(folder) in str(refusal.value)
        assert "\n" not in str(refusal.value)
    finally:
        remove(deep)


def test_folders_without_end_in_what_a_killed_conversion_left(published, tmp_path):
    left = tmp_path / ".out.unfinished-x"
    left.mkdir()
    nest(left / "deep")
    try:
        convert(published, tmp_path / "out")
        assert describe(tmp_path / "out").config.num_layers == 3
    finally:
        if left.exists():
            remove(left / "deep")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "tokenizer_config.json"])
def test_deep_json(opening, name, published, tmp_path):
    folder = shutil.copytree(published, tmp_path / "hf")
    (folder / name).write_text(opening * 200_000)
    with pytest.raises(CheckpointError) as refusal:
        load(folder)
    assert str(folder) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_without_numbers_of_their_own(kind, tmp_path):
    torch = pytest.importorskip("torch", reason="a .bin checkpoint needs PyTorch, which is not installed")
    tensors = {key: torch.from_numpy(value) for key, value in golden_tensors("llada").items()}
    name = "model.transformer.wte.weight"
    make = {
        "sparse": lambda tensor: tensor.to_sparse(),
        "meta": lambda tensor: tensor.to("meta"),
    }
    tensors[name] = make[kind](tensors[name])
    (tmp_path / "config.json").write_text(json.dumps(golden_config("llada")))
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin") as refusal:
        load(tmp_path)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)
