"""Config, index and manifest with any values and bytes: refused in one line, or loaded for what they say.

Never a hang, never another kind of error, never weights or settings that the files do not have.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from small_checkpoints import at_once, write_folder, write_word_tokenizer
from small_models import small_model

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface.config_json import to_config_json
from depcap_jax.checkpoints.huggingface.dialects import DIALECTS
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.huggingface.readers import SafetensorsFile
from depcap_jax.checkpoints.loading import describe, load
from depcap_jax.checkpoints.storage import manifest_hash
from depcap_jax.inspect.memory import as_loaded
from depcap_jax.models import ModelConfig
from depcap_jax.models.parameters import get_leaves

FUZZ = settings(max_examples=120, deadline=None, derandomize=True)

STRANGE = [
    0,
    -1,
    1.0,
    1e-30,
    1e308,
    10**6,
    2**31,
    2**63,
    10**400,
    "x",
    "..",
    "a/b",
    "n" * 300,
    "\0",
    "\ud800",
]
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(STRANGE)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


def paths(content: dict[str, Any]) -> list[tuple[str, ...]]:
    """Where an object and those in it have values."""
    inner = (
        (name, *path) for name, part in content.items() if isinstance(part, dict) for path in paths(part)
    )
    return [*((name,) for name in content), *inner]


@st.composite
def edited(draw: st.DrawFn, content: dict[str, Any]) -> dict[str, Any]:
    """An object with one to three values changed, taken away or added."""
    result = copy.deepcopy(content)
    for *parents, name in draw(st.lists(st.sampled_from(paths(content)), min_size=1, max_size=3)):
        part: Any = result
        for parent in parents:
            part = part.get(parent) if isinstance(part, dict) else None
        if not isinstance(part, dict):
            continue
        way = draw(st.sampled_from(["set", "set", "drop", "add"]))
        if way == "drop":
            part.pop(name, None)
        else:
            part[name if way == "set" else draw(st.text(max_size=6))] = draw(VALUES)
    return result


@st.composite
def damaged(draw: st.DrawFn, content: dict[str, Any]) -> bytes:
    """An object's text with a few bytes cut out and others put in."""
    text = json.dumps(content, indent=1).encode()
    start = draw(st.integers(0, len(text)))
    junk = draw(st.binary(max_size=3) | st.sampled_from([b"0", b"-", b"e9", b"]", b"[" * 5000, b'"', b"NaN"]))
    return text[:start] + junk + text[start + draw(st.integers(0, 12)) :]


class Folder:
    """A folder with one file to break; what it loads to while whole."""

    def __init__(self, path: Path, name: str):
        self.path, self.file = path, path / name
        self.content: dict[str, Any] = json.loads(self.file.read_text())
        self.config, self.leaves = self._load()

    def _load(self) -> tuple[ModelConfig, dict[str, np.ndarray]]:
        model, tokenizer = load(self.path)
        assert tokenizer is not None
        return model.config, {name: np.asarray(leaf) for name, leaf in get_leaves(model).items()}

    def meets(self, text: bytes, check: Callable[[dict[str, Any], ModelConfig], None]) -> None:
        """Loads with this text in the file: it is refused, or `check` finds what it says in the config."""
        self.file.write_bytes(text)
        try:
            with at_once():
                config, leaves = self._load()
        except CheckpointError as error:
            said = str(error)
            assert str(self.path) in said
            assert len(said.splitlines()) == 1
            return
        check(json.loads(text), config)
        assert leaves.keys() == self.leaves.keys()
        for name, leaf in leaves.items():
            np.testing.assert_array_equal(leaf, self.leaves[name], strict=True)


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """A Hugging Face folder of two shards with a tokenizer."""
    folder = tmp_path_factory.mktemp("fuzz")
    model = small_model("llada")
    whole = SafetensorsFile(export(model, folder / "whole") / "model.safetensors")
    tensors = {
        key: whole.read(key, tuple(slice(0, size) for size in info.shape))
        for key, info in whole.tensors.items()
    }
    write_folder(folder / "hf", to_config_json(model.config), tensors, shards=2)
    write_word_tokenizer(folder / "hf")
    return folder / "hf"


@pytest.fixture(scope="module")
def config_folder(published, tmp_path_factory) -> Folder:
    return Folder(shutil.copytree(published, tmp_path_factory.mktemp("c") / "hf"), "config.json")


@pytest.fixture(scope="module")
def index_folder(published, tmp_path_factory) -> Folder:
    return Folder(
        shutil.copytree(published, tmp_path_factory.mktemp("i") / "hf"), "model.safetensors.index.json"
    )


@pytest.fixture(scope="module")
def manifest_folder(published, tmp_path_factory) -> Folder:
    target = tmp_path_factory.mktemp("m") / "out"
    convert(published, target)
    return Folder(target, "checkpoint.json")


def texts(content: dict[str, Any]) -> st.SearchStrategy[bytes]:
    return edited(content).map(lambda it: json.dumps(it).encode()) | damaged(content)


@FUZZ
@given(st.data())
def test_config_json(config_folder, data):
    def check(content: dict[str, Any], config: ModelConfig) -> None:
        for field, name in DIALECTS["llada"].names.items():
            if content.get(name) is not None:
                found, said = getattr(config, field), content[name]
                # Rows beyond the vocabulary are never fewer than none.
                assert found == (max(said, config.vocab_size) if field == "embedding_size" else said)
        if (ends := content.get("eos_token_id")) is None:
            ends = 1  # the tokenizer's
        assert config.eos_token_ids == tuple(dict.fromkeys(ends if isinstance(ends, list) else [ends]))

    config_folder.meets(data.draw(texts(config_folder.content)), check)


@FUZZ
@given(st.data())
def test_config_json_alone(config_folder, tmp_path_factory, data):
    """What `depcap info` is asked about: nothing beside the config says how large the model is."""
    file = tmp_path_factory.getbasetemp() / "config.json"
    file.write_bytes(data.draw(texts(config_folder.content)))
    with at_once(), contextlib.suppress(CheckpointError):  # of one line: it makes itself so
        described = describe(file)
        model = as_loaded(described.config, described.dtype)
        assert model.config.num_layers == json.loads(file.read_bytes())["n_layers"]


@FUZZ
@given(st.data())
def test_index(index_folder, data):
    def check(content: dict[str, Any], config: ModelConfig) -> None:
        assert content["weight_map"] == index_folder.content["weight_map"]
        assert config == index_folder.config

    index_folder.meets(data.draw(texts(index_folder.content)), check)


@FUZZ
@given(st.data())
def test_manifest(manifest_folder, data):
    def check(content: dict[str, Any], config: ModelConfig) -> None:
        assert content == manifest_folder.content
        assert config == manifest_folder.config

    manifest_folder.meets(data.draw(texts(manifest_folder.content)), check)


@FUZZ
@given(st.data())
def test_manifest_with_the_right_hash(manifest_folder, data):
    def check(content: dict[str, Any], config: ModelConfig) -> None:
        assert config.to_dict() == {**manifest_folder.config.to_dict(), **content["config"]}

    content = data.draw(edited(manifest_folder.content))
    text = json.dumps({**content, "sha256": manifest_hash(content)})
    manifest_folder.meets(text.encode(), check)
