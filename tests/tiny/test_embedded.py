"""The models that come with the package: their files, their way through the conversion, what they can do."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

import depcap_jax as dc
from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.loading import EMBEDDED
from depcap_jax.models.parameters import get_leaves
from depcap_jax.tiny import held_out
from depcap_jax.tiny.score import score
from training.sizes import model_config

NAMES = sorted(EMBEDDED)
LEAST_RIGHT = 0.8


@pytest.mark.parametrize("name", NAMES)
def test_files(name):
    folder = EMBEDDED[name]
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert set(files) == {
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert sum(files.values()) < 12_000_000
    with safe_open(folder / "model.safetensors", framework="numpy") as stored:
        assert {stored.get_tensor(key).dtype for key in stored.keys()} == {np.dtype(np.float16)}  # noqa: SIM118


@pytest.mark.parametrize("name", NAMES)
def test_names_load_in_float32_whatever_the_folder_holds(name):
    model, tokenizer = dc.load(name)
    assert model.dtype == jnp.float32
    assert dc.load(name, dtype="bfloat16")[0].dtype == jnp.bfloat16
    assert tokenizer is not None
    assert tokenizer.chat_template
    assert model.config == model_config("llada" if name == "tiny-llada" else "dream")


@pytest.mark.parametrize("name", NAMES)
def test_exported_and_converted_again_they_answer_the_same(name, tmp_path):
    model, tokenizer = dc.load(name)
    export(model, tmp_path / "torch", dtype="float32", tokenizer=tokenizer)
    convert(tmp_path / "torch", tmp_path / "jax")
    again, its_tokenizer = dc.load(tmp_path / "jax")
    leaves, its_leaves = get_leaves(model), get_leaves(again)
    assert leaves.keys() == its_leaves.keys()
    for leaf, array in leaves.items():
        np.testing.assert_array_equal(array, its_leaves[leaf])
    config = dc.recipe("confidence", cache="dual", gen_length=64)
    prompts = [problem.prompt for problem in held_out()[:8]]
    one, two = (
        dc.TextGenerator(*pair, config).run(prompts) for pair in ((model, tokenizer), (again, its_tokenizer))
    )
    assert one == two


@pytest.mark.parametrize("name", NAMES)
def test_they_solve_problems_depcap_needs_fewer_passes_and_carelessness_costs(name):
    """What the cards claim, with room for another processor's rounding."""
    model, tokenizer = dc.load(name)
    problems = held_out()[:60]
    decoders = {
        "vanilla": dc.recipe("vanilla", gen_length=128),
        "depcap": dc.recipe("depcap", gen_length=128),
        "careless": dc.recipe("confidence", threshold=0.3, block_length=128, gen_length=128),
    }
    scores = {
        decoder: score(model, tokenizer, problems, config, batch_size=30)
        for decoder, config in decoders.items()
    }
    assert min(scores["vanilla"].accuracy, scores["depcap"].accuracy) >= LEAST_RIGHT
    assert scores["depcap"].passes < 0.5 * scores["vanilla"].passes
    assert scores["careless"].accuracy < scores["vanilla"].accuracy - 0.15
    assert set(scores["vanilla"].by_kind()) == {problem.kind for problem in problems}
