"""LoRA adapters, merged while a checkpoint is read: against PEFT, against NumPy, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil

import chex
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_checkpoints import LAYOUTS, everything_under, golden_config, golden_tensors, write_folder

from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.huggingface import source
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.loading import load
from depcap_jax.cli.commands.depcap_convert import main
from depcap_jax.models.parameters import get_leaves

HINTS = LAYOUTS["qwen2"]
Q0 = "model.transformer.blocks.0.q_proj"
A0, B0 = f"base_model.model.{Q0}.lora_A.weight", f"base_model.model.{Q0}.lora_B.weight"


@pytest.fixture
def adapter(tmp_path):
    """One for the golden LLaDA, by the published names: rank 3 for two kinds of modules."""
    numbers, tensors = np.random.default_rng(0), {}
    for key, value in golden_tensors("llada").items():
        if key.endswith(("q_proj.weight", ".ff_out.weight")) and "blocks" in key:
            module = f"base_model.model.{key.removesuffix('.weight')}"
            tensors[f"{module}.lora_A.weight"] = numbers.normal(size=(3, value.shape[1])).astype(np.float32)
            tensors[f"{module}.lora_B.weight"] = numbers.normal(size=(value.shape[0], 3)).astype(np.float32)
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, "target_modules": ["q_proj", "ff_out"]}
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def edit(folder, **changes):
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def merged(folder, tmp_path, **settings):
    """The tensors of a checkpoint after converting it, by their published names."""
    convert(folder, tmp_path / "out", overwrite=True, verify=True, **settings)
    shutil.rmtree(tmp_path / "back", ignore_errors=True)
    export(tmp_path / "out", tmp_path / "back")
    return load_file(tmp_path / "back" / "model.safetensors")


def test_merges_what_peft_merges(golden_dir, tmp_path):
    """With ranks and alphas of some modules' own; the modules that it does not name stay bit by bit."""
    tensors = merged(golden_dir / "qwen2", tmp_path, adapter=golden_dir / "qwen2" / "adapter", **HINTS)
    golden = load_file(golden_dir / "qwen2" / "adapter" / "merged.safetensors")
    plain = golden_tensors("qwen2")
    assert len(golden) == 6
    for key, value in tensors.items():
        if key in golden:
            np.testing.assert_allclose(value, golden[key], rtol=0, atol=2e-7)
            assert np.abs(value - plain[key]).max() > 0.1
        else:
            assert np.array_equal(value, plain[key])


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_merges_in_float32_and_casts_once(adapter, golden_dir, tmp_path, rslora, dtype):
    edit(adapter, use_rslora=rslora)
    plain, factors = golden_tensors("llada"), load_file(adapter / "adapter_model.safetensors")
    scale = 5 / (np.sqrt(3) if rslora else 3)
    got = merged(golden_dir / "llada", tmp_path, adapter=adapter, dtype=dtype)
    for key, value in plain.items():
        module = f"base_model.model.{key.removesuffix('.weight')}"
        expected = value.astype(np.float64)
        if f"{module}.lora_A.weight" in factors:
            a, b = (factors[f"{module}.lora_{factor}.weight"].astype(np.float64) for factor in "AB")
            expected = expected + scale * (b @ a)
        cast = got[key].astype(np.float64)
        np.testing.assert_allclose(cast, expected, rtol=2**-8 if dtype == "bfloat16" else 2e-6, atol=2e-6)


def test_blocks_of_rows_and_columns_add_up(adapter, golden_dir, monkeypatch):
    """However a weight is cut, for a mesh or into blocks, each piece gets its own piece of the product."""
    weights = source.HuggingFaceSource(golden_dir / "llada", adapter=adapter)
    leaves = ("layers.0.attn.q.kernel", "layers.2.ff.down.kernel")
    whole = {leaf: weights.read(leaf, "float32") for leaf in leaves}
    monkeypatch.setattr(source, "_ROWS", 7)
    monkeypatch.setattr(source, "_BYTES", 2048)
    for leaf, expected in whole.items():
        np.testing.assert_allclose(weights.read(leaf, "float32"), expected, atol=1e-6)
        part = weights.read(leaf, "float32", (slice(5, 40), slice(16, 50)))
        np.testing.assert_allclose(part, expected[5:40, 16:50], atol=1e-6)
    assert weights.adapter is not None
    assert weights.adapter.factors("layers.0.attn.k.kernel") is None


def test_load_merges_as_conversion_does(golden_dir, tmp_path):
    path, adapter = golden_dir / "qwen2", golden_dir / "qwen2" / "adapter"
    convert(path, tmp_path / "out", adapter=adapter, dtype="bfloat16", **HINTS)
    loaded, _ = load(path, adapter=adapter, dtype="bfloat16", **HINTS)
    chex.assert_trees_all_equal(get_leaves(loaded), get_leaves(load(tmp_path / "out")[0]), strict=True)
    with pytest.raises(CheckpointError, match="merged while converting"):
        load(tmp_path / "out", adapter=adapter)


def test_target_says_which_adapter_it_has(golden_dir, tmp_path, capsys):
    adapter = golden_dir / "qwen2" / "adapter"
    words = ["--mask-id", "5", "--predicts-next", "--adapter", str(adapter)]
    assert main([str(golden_dir / "qwen2"), str(tmp_path / "out"), *words, "--verify"]) == 0
    assert "verified" in capsys.readouterr().out
    origin = json.loads((tmp_path / "out" / "source.json").read_text())
    assert [file["name"] for file in origin["files"]] == ["config.json", "model.safetensors"]
    files = {file["name"]: file["sha256"] for file in origin["adapter"]["files"]}
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert files.pop(name) == hashlib.sha256((adapter / name).read_bytes()).hexdigest()
    assert not files
    assert origin["adapter"]["config"]["r"] == 4
    assert origin["adapter"]["folder"] == "adapter"


# What is done to a whole adapter, and the words that the line must have.
BROKEN = {
    "not LoRA": (lambda f: edit(f, peft_type="IA3"), ["peft_type = 'IA3'", "'LORA'"]),
    "biases": (lambda f: edit(f, bias="all"), ["bias = 'all'", "'none'"]),
    "DoRA": (lambda f: edit(f, use_dora=True), ["use_dora = True", "without it"]),
    "transposed": (lambda f: edit(f, fan_in_fan_out=True), ["fan_in_fan_out = True"]),
    "whole modules": (lambda f: edit(f, modules_to_save=["ff_out"]), ["modules_to_save = ['ff_out']"]),
    "what is not known yet": (lambda f: edit(f, use_zlora=True), ["use_zlora = True"]),
    "PiSSA": (lambda f: edit(f, init_lora_weights="pissa"), ["init_lora_weights = 'pissa'", "'gaussian'"]),
    "no rank": (lambda f: edit(f, r=None), ["r = None", "positive number"]),
    "no alpha": (lambda f: edit(f, lora_alpha=0), ["lora_alpha = 0", "positive number"]),
    "absurd alpha": (lambda f: edit(f, lora_alpha=10**400), ["lora_alpha = 1000", "below 1e9"]),
    "another rank": (lambda f: edit(f, r=4), ["lora_A.weight", "[3, 160]", "[4, 160]"]),
    "a pattern for the rank": (lambda f: edit(f, rank_pattern={Q0: 2}), [A0, "[2, 64]"]),
    "a regular expression": (lambda f: edit(f, alpha_pattern={"(a+)+$": 2}), ["alpha_pattern", "(a+)+$"]),
    "a target without tensors": (
        lambda f: edit(f, target_modules=["q_proj", "ff_out", "k_proj"]),
        ["'k_proj'", "adapter_model.safetensors"],
    ),
    "another model's modules": (
        lambda f: edit_tensors(
            f, lambda t: t.update({A0.replace(Q0, "model.layers.0.self_attn.q_proj"): t[A0]})
        ),
        ["unknown tensor", "model.layers.0.self_attn.q_proj", "linear layer"],
    ),
    "a layer too many": (
        lambda f: edit_tensors(f, lambda t: t.update({A0.replace("blocks.0", "blocks.3"): t[A0]})),
        ["unknown tensor", "blocks.3"],
    ),
    "the embedding": (
        lambda f: edit_tensors(f, lambda t: t.update({A0.replace(Q0, "model.transformer.wte"): t[A0]})),
        ["unknown tensor", "wte"],
    ),
    "another name": (
        lambda f: edit_tensors(f, lambda t: t.update({A0.replace("weight", "default.weight"): t[A0]})),
        ["unknown tensor", "default.weight", "MODULE.lora_A.weight"],
    ),
    "one factor": (lambda f: edit_tensors(f, lambda t: t.pop(B0)), ["missing tensor", B0]),
    "another width": (
        lambda f: edit_tensors(f, lambda t: t.update({B0: t[B0][:32].copy()})),
        [B0, "[32, 3]", "[64, 3]"],
    ),
    "integers": (
        lambda f: edit_tensors(f, lambda t: t.update({B0: t[B0].astype(np.int32)})),
        [B0, "I32", "float32, bfloat16, float16"],
    ),
    "nothing": (lambda f: (edit(f, target_modules=[]), edit_tensors(f, dict.clear)), ["holds no tensor"]),
    "no weights": (
        lambda f: (f / "adapter_model.safetensors").unlink(),
        ["has no adapter_model.safetensors"],
    ),
    "no config": (lambda f: (f / "adapter_config.json").unlink(), ["adapter_config.json", "no such file"]),
    "damage": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(b"hello" * 9),
        ["adapter_model.safetensors", "corrupt"],
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_bad_adapter_is_one_line_and_leaves_nothing(kind, adapter, golden_dir, tmp_path, capsys):
    damage, words = BROKEN[kind]
    damage(adapter)
    before = everything_under(tmp_path)
    assert main([str(golden_dir / "llada"), str(tmp_path / "out"), "--adapter", str(adapter)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in words), said
    assert everything_under(tmp_path) == before


def test_number_beyond_float16_is_named_after_the_sum(adapter, tmp_path):
    edit(adapter, lora_alpha=10**6)
    folder = write_folder(tmp_path / "hf", golden_config("llada"), golden_tensors("llada"))
    with pytest.raises(CheckpointError, match="float16 ends at 65504"):
        convert(folder, tmp_path / "out", adapter=adapter, dtype="float16")
