"""The models that come with the package: their files, their way through the conversion, what they can do."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from timings import without_timing

import depcap_jax as dc
from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.huggingface.export import export
from depcap_jax.checkpoints.loading import EMBEDDED
from depcap_jax.evaluation.decoder import Decoder
from depcap_jax.evaluation.engine import Run, Subject, evaluate
from depcap_jax.evaluation.tasks import Task, load_task
from depcap_jax.models.parameters import get_leaves
from depcap_jax.tiny import held_out
from training.sizes import model_config
from training.task import KINDS

NAMES = sorted(EMBEDDED)
LEAST_RIGHT = 0.8

load = functools.cache(dc.load)


@functools.cache
def short_task() -> Task:
    """The first four held-out problems of each kind that can be answered in fewer than 32 tokens."""
    tokenizer = load(NAMES[0])[1]
    assert tokenizer is not None
    chosen = {kind: [] for kind in KINDS}
    for problem, asked in zip(held_out(), load_task("tiny").problems, strict=True):
        if len(tokenizer(problem.answer)["input_ids"]) < 32:
            chosen[problem.kind].append(asked)
    return Task("short", tuple(asked for kind in chosen.values() for asked in kind[:4]))


def decoders(gen_length: int) -> dict[str, Decoder]:
    one_block = {"block_length": gen_length, "threshold": 0.3}
    return {
        "vanilla": Decoder("vanilla", {"gen_length": gen_length}),
        "depcap": Decoder("depcap", {"gen_length": gen_length}),
        "cached": Decoder("depcap", {"gen_length": gen_length, "cache": "dual-margin"}),
        "careless": Decoder("confidence", {"gen_length": gen_length, **one_block}),
    }


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
        assert {stored.get_tensor(key).dtype for key in stored.keys()} == {np.dtype(np.float16)}  # noqa: SIM118 (not a mapping)


@pytest.mark.parametrize("name", NAMES)
def test_names_load_in_float32_whatever_the_folder_holds(name):
    model, tokenizer = load(name)
    assert model.dtype == jnp.float32
    assert dc.load(name, dtype="bfloat16")[0].dtype == jnp.bfloat16
    assert tokenizer is not None
    assert tokenizer.chat_template
    assert model.config == model_config("llada" if name == "tiny-llada" else "dream")


@pytest.mark.parametrize("name", NAMES)
def test_exported_and_converted_again_they_answer_the_same(name, tmp_path):
    model, tokenizer = load(name)
    export(model, tmp_path / "torch", dtype="float32", tokenizer=tokenizer)
    convert(tmp_path / "torch", tmp_path / "jax")
    again, its_tokenizer = dc.load(tmp_path / "jax")
    leaves, its_leaves = get_leaves(model), get_leaves(again)
    assert leaves.keys() == its_leaves.keys()
    for leaf, array in leaves.items():
        np.testing.assert_array_equal(array, its_leaves[leaf])
    decoder = decoders(32)["careless"]
    one, two = (
        evaluate(Subject(name, *pair, batch_size=24), short_task(), decoder)
        for pair in ((model, tokenizer), (again, its_tokenizer))
    )
    assert without_timing(one.content) == without_timing(two.content)


@pytest.mark.compiler
@pytest.mark.parametrize("name", NAMES)
def test_they_solve_problems_depcap_needs_fewer_passes_and_carelessness_costs(name):
    """What the cards claim, with room for another processor's rounding."""
    check_claims(name, short_task(), 32, batch_size=24)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_same_on_more_and_longer_problems(name):
    check_claims(name, load_task("tiny", limit=60), 128, batch_size=30)


def check_claims(name: str, task: Task, gen_length: int, *, batch_size: int) -> None:
    subject = Subject(name, *load(name), batch_size=batch_size)
    runs = {
        title: evaluate(subject, task, decoder, title=title)
        for title, decoder in decoders(gen_length).items()
    }
    vanilla, depcap, cached, careless = (
        runs[title].summary for title in ("vanilla", "depcap", "cached", "careless")
    )
    assert min(vanilla["accuracy"], depcap["accuracy"]) >= LEAST_RIGHT
    assert depcap["nfe"] < 0.5 * vanilla["nfe"]
    assert cached["accuracy"] >= depcap["accuracy"] - 0.05, "a cache with margins costs hardly an answer"
    assert cached["nfe"] < 1.1 * depcap["nfe"]
    assert careless["accuracy"] < vanilla["accuracy"] - 0.15
    assert kinds_solved(task, runs["vanilla"]) == kinds_solved(task, runs["depcap"]) == set(KINDS)


def kinds_solved(task: Task, run: Run) -> set[str]:
    """The kinds of which at least one problem was solved."""
    records: list[Mapping] = run.content["problems"]
    return {task.problems[record["index"]].content for record in records if record["right"]}
