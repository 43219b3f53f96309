"""Loading: what is refused, what is cast, and which tokenizer comes along."""

from __future__ import annotations

import shutil
import socket
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_checkpoints import (
    chunk_of,
    edit_manifest,
    flip_bit,
    golden_config,
    golden_tensors,
    published_data,
    write_folder,
    write_word_tokenizer,
)

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.devices import choose_dtype, has_fused_attention
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.loading import load, save
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.models import ConfigError
from depcap_jax.text.codec import MissingTokenizerError, require_tokenizer


@pytest.fixture
def copy(converted_dir, tmp_path):
    """A converted checkpoint to break."""
    return shutil.copytree(converted_dir / "llada", tmp_path / "copy")


DAMAGE = {
    "flipped bit in a weight": (
        lambda f: flip_bit(chunk_of(f, "layers.1.attn.q.kernel")),
        ["layers.1.attn.q.kernel", "params", "fingerprint"],
    ),
    "truncated chunk": (
        lambda f: (p := chunk_of(f, "head")).write_bytes(p.read_bytes()[:-100]),
        ["'head'", "params", "damaged"],
    ),
    "absent chunk": (lambda f: chunk_of(f, "norm.scale").unlink(), ["'norm.scale'", "params", "damaged"]),
    "broken header": (
        lambda f: next(f.rglob("embed/zarr.json")).write_text("{"),
        ["embed/zarr.json", "params", "damaged"],
    ),
    "absent parameter": (
        lambda f: shutil.rmtree(next(f.rglob("layers.2.ff.up.kernel"))),
        ["lacks", "layers.2.ff.up.kernel"],
    ),
    "parameter too many": (
        lambda f: edit_manifest(f, lambda m: m["config"].update(num_layers=2)),
        ["layers.2.", "config"],
    ),
    "absent parameters": (lambda f: shutil.rmtree(f / "params"), ["params", "lacks"]),
    "config of another size": (
        lambda f: edit_manifest(f, lambda m: m["config"].update(ff_width=128)),
        ["ff.down.kernel", "[160, 64]", "[128, 64]"],
    ),
    "config of another dtype": (
        lambda f: edit_manifest(f, lambda m: m.update(dtype="bfloat16")),
        ["embed", "float32", "bfloat16"],
    ),
    "config with a wrong value": (
        lambda f: edit_manifest(f, lambda m: m["config"].update(num_heads=0)),
        ["checkpoint.json", "num_heads", "0"],
    ),
    "config with an unknown field": (
        lambda f: edit_manifest(f, lambda m: m["config"].update(speed=9)),
        ["checkpoint.json", "'speed'"],
    ),
    "config without a field": (
        lambda f: edit_manifest(f, lambda m: m["config"].pop("eos_token_ids")),
        ["checkpoint.json", "'eos_token_ids'"],
    ),
    "other version": (lambda f: edit_manifest(f, lambda m: m.update(version=99)), ["checkpoint.json", "99"]),
    "no config": (lambda f: edit_manifest(f, lambda m: m.pop("config")), ["checkpoint.json", "'config'"]),
    "manifest is no JSON": (lambda f: (f / "checkpoint.json").write_text("{"), ["checkpoint.json", "JSON"]),
    "manifest is binary": (
        lambda f: (f / "checkpoint.json").write_bytes(b"\xff\xfe"),
        ["checkpoint.json", "damaged"],
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoint_is_refused_by_name(name, copy):
    damage, words = DAMAGE[name]
    damage(copy)
    with pytest.raises(CheckpointError) as refusal:
        load(copy)
    for word in (str(copy), *words):
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_path_that_is_no_checkpoint(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, words in {"absent": "no such folder", "file": "is a file", "empty": "no checkpoint"}.items():
        with pytest.raises(CheckpointError, match=words) as refusal:
            load(tmp_path / name)
        assert str(tmp_path / name) in str(refusal.value)


def test_config_error_of_a_hugging_face_folder_names_the_folder(tmp_path):
    folder = write_folder(tmp_path / "hf", {**golden_config("llada"), "alibi": True}, golden_tensors("llada"))
    with pytest.raises(CheckpointError, match="alibi = True") as refusal:
        load(folder)
    assert isinstance(refusal.value, ConfigError)
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize("dtype", ["bfloat16", jnp.float16, np.float32])
def test_dtype_casts_both_ways_of_loading(dtype, golden_dir, converted_dir):
    for folder in (golden_dir, converted_dir):
        assert load(folder / "dream", dtype=dtype)[0].dtype == jnp.dtype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "float64", "half-ish", np.int32])
def test_other_dtypes_are_refused(dtype, golden_dir):
    with pytest.raises(CheckpointError, match="float32, bfloat16, float16"):
        load(golden_dir / "dream", dtype=dtype)


def test_numbers_beyond_float16_are_refused(tmp_path):
    tensors = golden_tensors("llada")
    tensors["model.transformer.wte.weight"][0, 0] = 7e4
    folder = write_folder(tmp_path / "hf", golden_config("llada"), tensors)
    convert(folder, tmp_path / "out")
    for place in (folder, tmp_path / "out"):
        for mesh in (None, jax.make_mesh((8,), ("tensor",))):
            with pytest.raises(CheckpointError, match=r"holds 70000; float16 ends at 65504"):
                load(place, dtype="float16", mesh=mesh)


def test_save_replaces_only_checkpoints(converted_dir, tmp_path):
    model, _ = load(converted_dir / "llada")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "note").touch()
    with pytest.raises(CheckpointError, match="exists"):
        save(model, tmp_path / "notes")
    with pytest.raises(CheckpointError, match="no converted checkpoint"):
        save(model, tmp_path / "notes", overwrite=True)
    save(model, tmp_path / "model")
    with pytest.raises(CheckpointError, match="exists"):
        save(model, tmp_path / "model")
    save(model, tmp_path / "model", overwrite=True)


TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize("where", ["tokenizer_config.json", "chat_template.jinja"])
def test_tokenizer_comes_from_the_files_alone(where, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr("builtins.input", no_network)
    folder = write_folder(tmp_path / "hf", golden_config("llada"), golden_tensors("llada"))
    # What makes transformers look for, and ask about, code in the folder.
    remote = {"auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}, "tokenizer_class": "Tokenizer"}
    write_word_tokenizer(folder, **remote, **({"chat_template": TEMPLATE} if "config" in where else {}))
    (folder / "code.py").write_text("raise AssertionError('remote code was run')")
    if where == "chat_template.jinja":
        (folder / where).write_text(TEMPLATE)
    convert(folder, tmp_path / "out")
    for place in (folder, tmp_path / "out"):
        _, tokenizer = load(place)
        tokenizer = require_tokenizer(tokenizer)
        assert tokenizer.is_fast
        assert tokenizer("hello world")["input_ids"] == [2, 3]
        assert tokenizer.eos_token_id == 1
        assert tokenizer.chat_template == TEMPLATE
    assert not (tmp_path / "out" / "tokenizer" / "code.py").exists()


def test_broken_tokenizer_says_where(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer files") as refusal:
        load_tokenizer(tmp_path)
    assert str(tmp_path) in str(refusal.value)


def test_absent_tokenizer_says_so_on_first_use(golden_dir, converted_dir):
    for folder in (golden_dir, converted_dir):
        _, tokenizer = load(folder / "llada")
        assert tokenizer is None
        with pytest.raises(MissingTokenizerError, match=r"tokenizer\.json"):
            require_tokenizer(tokenizer)


def test_saved_tokenizer_comes_back(converted_dir, tmp_path):
    write_word_tokenizer(tmp_path)
    model, _ = load(converted_dir / "llada")
    save(model, tmp_path / "out", tokenizer=load_tokenizer(tmp_path))
    tokenizer = require_tokenizer(load(tmp_path / "out")[1])
    assert tokenizer("world")["input_ids"] == [3]


def test_published_vocabulary_of_dream():
    tokenizer = require_tokenizer(load_tokenizer(published_data("dream-tokenizer")))
    assert tokenizer.is_fast
    assert tokenizer.mask_token_id == 151666
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == 151643
    text = "def f(x):\n    return x ** 2  # 平方\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer("<|im_end|>")["input_ids"] == [151645]
    assert tokenizer.chat_template


def test_published_folder_without_a_vocabulary_has_no_tokenizer():
    assert load_tokenizer(published_data("llada-8b-instruct")) is None


@pytest.mark.parametrize(
    ("platform", "capability", "dtype", "fused"),
    [
        ("gpu", "8.0", "bfloat16", True),
        ("gpu", "12.0", "float16", True),
        ("gpu", "7.5", "float16", False),  # a T4
        ("gpu", "8.0", "float32", False),
        ("gpu", "gfx90a", "bfloat16", False),  # AMD
        ("cpu", None, "bfloat16", False),
    ],
)
def test_attention_is_fused_where_cudnn_can(platform, capability, dtype, fused):
    device = types.SimpleNamespace(platform=platform, compute_capability=capability)
    assert has_fused_attention(device, dtype) is fused


def test_a_dtype_that_the_device_lacks():
    t4 = types.SimpleNamespace(platform="gpu", compute_capability="7.5", device_kind="Tesla T4")
    with pytest.warns(UserWarning, match=r"Tesla T4 has no bfloat16 .*: loading in float16"):
        assert choose_dtype(None, "bfloat16", t4) == "float16"
    with pytest.raises(CheckpointError, match=r"Tesla T4 has no bfloat16 .*; choose float16 or float32"):
        choose_dtype("bfloat16", "float32", t4)
    assert choose_dtype(None, "float32", t4) == "float32"
    assert choose_dtype("float16", "bfloat16", t4) == "float16"
    for platform, capability in (("gpu", "8.0"), ("gpu", "gfx90a"), ("tpu", None), ("cpu", None)):
        device = types.SimpleNamespace(platform=platform, compute_capability=capability)
        assert choose_dtype(None, "bfloat16", device) == "bfloat16"


def test_attention_that_cannot_be_fused_is_refused(golden_dir):
    with pytest.raises(ValueError, match=r"Ampere on, in bfloat16 or float16; got float32 on cpu"):
        load(golden_dir / "llada", fused_attention=True)
    assert not load(golden_dir / "llada")[0].fused_attention
