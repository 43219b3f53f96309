"""Small checkpoints in the published layouts, whole and broken."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from depcap_jax.checkpoints.storage import manifest_hash

GOLDEN = Path(__file__).parent / "golden"
REPOSITORY = Path(__file__).parents[1]

Tensors = dict[str, np.ndarray]

# What the published config.json files say of the models in full size.
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
    "precision": "amp_bf16",  # and no dtype
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
# Its card has the sizes, its code the names.
ILLADA_8B = {
    "model_type": "illada",
    "architectures": ["ILLaDAForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "vocab_size": 155136,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
# That of Qwen2.5-Coder-0.5B, from which Open-dCoder and a diffusion model of dllm were made.
QWEN2_05B = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "num_hidden_layers": 24,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
    "eos_token_id": 151643,
}
# That of Qwen3-0.6B.
QWEN3_06B = {
    "model_type": "a2d-qwen3",
    "architectures": ["A2DQwen3LMHeadModel"],
    "attention_bias": False,
    "hidden_size": 1024,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 28,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 151645,
}

# What the golden checkpoints' own files do not tell.
LAYOUTS: dict[str, dict[str, Any]] = {
    "illada": {"mask_token_id": 5},
    "qwen2": {"mask_token_id": 5, "predicts_next": True},
    "qwen3": {},
}


def golden_config(family: str) -> dict[str, Any]:
    return json.loads((GOLDEN / family / "config.json").read_text())


def golden_tensors(family: str) -> Tensors:
    return load_file(GOLDEN / family / "model.safetensors")


def golden_forward(family: str) -> tuple[np.ndarray, np.ndarray]:
    """Token ids, and the logits that the PyTorch model gives."""
    forward = load_file(GOLDEN / family / "forward.safetensors")
    return forward["input_ids"], forward["logits"]


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Tensors, *, shards: int | None = None
) -> Path:
    """A Hugging Face folder with one safetensors file, or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards is None:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[number::shards]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    write_index(folder, weight_map)
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str]) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def read_index(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def write_word_tokenizer(folder: Path, **config: Any) -> None:
    """A `tokenizer.json` of a few words, as small as one can be."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"<unk>": 0, "<|endoftext|>": 1, "hello": 2, "world": 3}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    given = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(given))


def assert_same_bits(first: Tensors, second: Tensors) -> None:
    """Fails, naming a tensor that differs, unless both have the same names, dtypes, shapes and bits."""

    def bits(tensors: Tensors) -> Tensors:
        return {name: value.view(f"u{value.dtype.itemsize}") for name, value in tensors.items()}

    chex.assert_trees_all_equal_shapes_and_dtypes(first, second)
    chex.assert_trees_all_equal(bits(first), bits(second), strict=True)


def chunk_of(folder: Path, leaf: str) -> Path:
    """A file that holds a part of one parameter of a converted checkpoint."""
    return next(path for path in folder.rglob(f"{leaf}/c/**/*") if path.is_file())


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the manifest of a converted checkpoint, and its hash with it, as no accident does."""
    manifest = json.loads((folder / "checkpoint.json").read_text())
    change(manifest)
    content = {**manifest, "sha256": manifest_hash(manifest)}
    (folder / "checkpoint.json").write_text(json.dumps(content))


@contextlib.contextmanager
def at_once(seconds: float = 20) -> Iterator[None]:
    """Fails what takes longer, also where it waits for a file."""

    def fail(*_: object) -> None:
        raise AssertionError(f"still at it after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def flip_bit(path: Path, position: int = 100) -> None:
    """Damages one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def run_convert(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=120)


def published_data(name: str) -> Path:
    """A published file or folder that is too large, or not ours, to be in the repository."""
    folder = os.environ.get("DEPCAP_DATA")
    if not folder or not (path := Path(folder) / name).exists():
        pytest.skip(f"needs the published {name} in the folder that DEPCAP_DATA names")
    return path


def everything_under(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, to see that nothing changed."""

    def files() -> Iterator[Path]:
        return (path for path in folder.rglob("*") if path.is_file())

    return {str(path.relative_to(folder)): path.read_bytes() for path in files()}
