"""A soak: random decodes of random recipes, caches, batches and lengths against the eager twin."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

import jax
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.reference import decode_eagerly

SEED = int(os.environ.get("DEPCAP_SOAK_SEED", "16"))
PROGRAMS, EACH = 25, 8  # compiled programs, and decodes by each
# What a program is compiled for.
# The paper's: the twin has blocks, and no window that slides.
RECIPES = [name for name in dc.RECIPES if name != "spread"]
STATIC: dict[str, tuple[int, ...]] = {
    "block_length": (1, 4, 7, 16, 40),
    "default_block_length": (3, 8, 40),
    "l_min": (1, 3, 8),
    "top_k_cache": (1, 8, 64, 600),
}
# What changes from decode to decode: the bounds between which it is drawn.
DATA = {
    "threshold": (0.0, 1.0),
    "factor": (0.0, 3.0),
    "delimiter_threshold": (0.0, 0.6),
    "lambda_u": (0.0, 2.0),
    "certainty_floor": (0.0, 3.0),
    "tau_low": (0.0, 0.6),
    "tau_high": (0.3, 1.0),
    "gamma": (-20.0, 0.0),
}


def endful(family: str) -> dc.Transformer:
    """A model of two layers that ends an answer with any of eight tokens, so that answers do end."""
    model = jax.tree.map(lambda leaf: leaf, small_model(family, num_layers=2))
    model.config = dataclasses.replace(model.config, eos_token_ids=tuple(range(3, 512, 64)))
    return model


def random_cache(rng: np.random.Generator) -> dict[str, Any]:
    """A cache's class and its settings; those that are data are drawn by `random_config`."""
    kind = (dc.NoCache, dc.PrefixCache, dc.DualCache)[rng.integers(3)]
    settings: dict[str, Any] = {"together": (None, 0, 1, 16)[rng.integers(4)]}
    if kind is not dc.NoCache:
        settings["margin"] = int(rng.choice([0, 0, 3, 1000]))
        settings["refresh_after"] = int(rng.choice([0, 0, 5]))
        settings["prompt_every"] = int(rng.choice([1, 1, 2, 3]))
    if kind is dc.DualCache:
        settings["margin_after"] = int(rng.choice([0, 0, 4]))
    return {"kind": kind, **settings}


def random_program(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """What is static, each recipe of each family in turn."""
    recipe = RECIPES[number % len(RECIPES)]
    settings: dict[str, Any] = {
        name: int(rng.choice(values)) for name, values in STATIC.items() if name in dc.recipe_settings(recipe)
    }
    if "l_min" in settings:
        settings["l_max"] = settings["l_min"] + int(rng.choice([0, 5, 13]))
    if recipe == "adablock":
        settings["delimiter_ids"] = tuple(rng.choice(500, 60, replace=False).tolist())
    return {
        "family": ("llada", "dream")[number // len(RECIPES) % 2],
        "recipe": recipe,
        "settings": {
            **settings,
            "gen_length": int(rng.choice([8, 20, 33])),
            "stop_at_eos": bool(rng.integers(2)),
        },
        "cache": random_cache(rng),
        "shape": (int(rng.integers(1, 4)), int(rng.choice([4, 12]))),
    }


def random_config(rng: np.random.Generator, program: dict[str, Any]) -> dc.DecodeConfig:
    known = dc.recipe_settings(program["recipe"])
    data = {name: float(rng.uniform(*bounds)) for name, bounds in DATA.items() if name in known}
    cache = dict(program["cache"])
    kind = cache.pop("kind")
    if kind is not dc.NoCache:
        cache |= {"refresh_every": int(rng.integers(5)), "quorum": float(rng.choice([0, 0.4, 1]))}
    return dc.recipe(program["recipe"], **program["settings"], **data, cache=kind(**cache))


def disagreements(model: Any, ids: np.ndarray, lengths: np.ndarray, config: dc.DecodeConfig) -> list[str]:
    """What of which row is not as the twin has it."""
    result, wrong = dc.generate(model, ids, lengths, config=config), []
    for row, length in enumerate(lengths):
        twin = decode_eagerly(model, ids[row, :length].tolist(), config)
        ends = np.flatnonzero(np.isin(twin.tokens, model.config.eos_token_ids) & config.stop_at_eos)
        if len(ends):  # what was committed behind the end is not shown
            behind = twin.tokens[ends[0] + 1 :]
            twin.tokens[ends[0] + 1 :] = [model.config.pad_token_id] * len(behind)
        sizes = [size for size in result.block_sizes[row].tolist() if size]
        pairs = {
            "tokens": (result.tokens[row].tolist(), twin.tokens),
            "commit_step": (result.commit_step[row].tolist(), twin.commit_step),
            "nfe": (int(result.nfe[row]), twin.nfe),
            "block_sizes": (sizes, twin.block_sizes),
        }
        wrong += [
            f"row {row}: {name} {got}, not {want}" for name, (got, want) in pairs.items() if got != want
        ]
    return wrong


@pytest.mark.slow
def test_random_decodes_are_those_of_the_eager_twin(capsys):
    rng, begin, rows, wrong = np.random.default_rng(SEED), time.monotonic(), 0, []
    for number in range(PROGRAMS):
        program = random_program(rng, number)
        model, (batch, width) = endful(program["family"]), program["shape"]
        for _ in range(EACH):
            config = random_config(rng, program)
            ids = rng.integers(0, 500, (batch, width)).astype(np.int32)
            # A prompt may hold the mask's id, but not that alone, nor nothing: all positions would be equal,
            # keys and values too, and only rounding would tell them apart.
            ids[:, 1:][rng.random((batch, width - 1)) < 0.05] = model.config.mask_token_id
            lengths = rng.choice([1, 3, width], batch)
            rows += batch
            found = disagreements(model, ids, lengths, config)
            wrong += [f"program {number}, {program['family']}, {config}, {lengths}: {what}" for what in found]
    with capsys.disabled():
        seconds = time.monotonic() - begin
        print(
            f"\nsoak: seed {SEED}, {PROGRAMS * EACH} decodes of {rows} rows by {PROGRAMS} programs, ", end=""
        )
        print(f"{len(wrong)} disagreements, {seconds:.0f} s")
    assert not wrong, "\n".join(wrong)
