"""All 135 runs of the authors' programs, in float32: through the compiled loop and through its eager twin."""

from __future__ import annotations

import itertools
import json

import golden_runs
import numpy as np
import pytest

import depcap_jax as dc
from depcap_jax.decoding.reference import decode_eagerly

FAMILIES = ("llada", "dream")
_DATA = ("lambda_u", "tau_low", "tau_high", "gamma", "threshold", "delimiter_threshold")


def _program(family: str, run: dict) -> str:
    """What a compilation depends on. Only AdaBlock's window depends on the answer's length."""
    answer = ("gen_length",) if run["method"] != "adablock" else ()
    skip = {*_DATA, *answer, "prompt_ids", "output_ids", "nfe", "block_sizes", "transfer_steps"}
    return json.dumps([family, {key: value for key, value in run.items() if key not in skip}])


_GROUPS = {
    program: [(family, run) for family, run in group]
    for program, group in itertools.groupby(
        sorted(
            ((family, run) for family in FAMILIES for run in golden_runs.runs(family)),
            key=lambda pair: _program(*pair),
        ),
        key=lambda pair: _program(*pair),
    )
}


def _marks(program: str) -> list[pytest.MarkDecorator]:
    """For each family and method one program comes first, of the caches in turn; CI runs all, optimised."""
    pairs = sorted({_kind(other)[:2] for other in _GROUPS})
    pair = _kind(program)[:2]
    kinds = sorted({_kind(other) for other in _GROUPS if _kind(other)[:2] == pair})
    chosen = kinds[pairs.index(pair) % len(kinds)]
    first = max((other for other in _GROUPS if _kind(other) == chosen), key=lambda other: len(_GROUPS[other]))
    return [pytest.mark.golden if program == first else pytest.mark.compiler]


def _kind(program: str) -> tuple[str, str, str]:
    family, settings = json.loads(program)
    return family, settings["method"], settings["cache"]


def _label(program: str) -> str:
    family, settings = json.loads(program)
    shape = [settings.get(key) for key in ("L_max", "block_length", "default_block_length", "gen_length")]
    return "-".join(str(part) for part in [family, settings["method"], settings["cache"], *shape] if part)


def test_all_135_runs_are_here():
    assert sum(map(len, _GROUPS.values())) == 135


@pytest.mark.parametrize(
    "program", [pytest.param(program, marks=_marks(program), id=_label(program)) for program in _GROUPS]
)
def test_compiled_loop(program):
    """Each compiled program decodes all its runs at once: prompts and answers of different lengths."""
    group = _GROUPS[program]
    gen_length = max(run["gen_length"] for _, run in group)
    canvas = max(len(run["prompt_ids"]) + run["gen_length"] for _, run in group)
    by_thresholds = itertools.groupby(
        sorted(group, key=lambda pair: [pair[1].get(key) or 0.0 for key in _DATA]),
        key=lambda pair: [pair[1].get(key) or 0.0 for key in _DATA],
    )
    batches = [[run for _, run in rows] for _, rows in by_thresholds]
    for rows in batches:
        # One shape for all thresholds: rows beyond the runs have nothing to decode.
        shape = (max(map(len, batches)), canvas)
        tokens, is_open = np.zeros(shape, np.int32), np.zeros(shape, bool)
        for row, run in enumerate(rows):
            begin = len(run["prompt_ids"])
            tokens[row, :begin] = run["prompt_ids"]
            is_open[row, begin : begin + run["gen_length"]] = True
        lengths = (is_open * np.arange(1, canvas + 1)).max(axis=1)
        result = dc.generate_canvas(
            golden_runs.model(group[0][0]),
            tokens,
            is_open,
            lengths,
            config=golden_runs.config(rows[0], gen_length=gen_length),
        )
        for i, run in enumerate(rows):
            answer = slice(0, run["gen_length"])
            wrong = golden_runs.differences(
                run,
                result.tokens[i, answer],
                result.nfe[i],
                result.block_sizes[i],
                result.commit_step[i, answer],
            )
            assert not wrong, f"run with a prompt of {len(run['prompt_ids'])}: {wrong}"


@pytest.mark.parametrize(
    ("method", "cache"),
    [("adablock", "none"), pytest.param("depcap", "prefix", marks=pytest.mark.compiler), ("vanilla", "dual")],
)
def test_generate(method, cache):
    """From a prompt, alone and without a canvas of one's own: the same as all runs above."""
    runs = golden_runs.runs("llada")
    run = min(
        (run for run in runs if (run["method"], run["cache"]) == (method, cache)), key=lambda run: run["nfe"]
    )
    result = dc.generate(
        golden_runs.model("llada"), np.array([run["prompt_ids"]]), config=golden_runs.config(run)
    )
    fields = result.tokens[0], result.nfe[0], result.block_sizes[0], result.commit_step[0]
    assert golden_runs.differences(run, *fields) == []


@pytest.mark.parametrize(
    ("family", "method"),
    [
        # The twin takes a while.
        pytest.param(*pair, marks=[] if pair == ("dream", "confidence") else [pytest.mark.compiler])
        for pair in sorted({(f, run["method"]) for f in FAMILIES for run in golden_runs.runs(f)})
    ],
)
def test_eager_twin(family, method):
    for run in golden_runs.runs(family):
        if run["method"] == method:
            result = decode_eagerly(golden_runs.model(family), run["prompt_ids"], golden_runs.config(run))
            fields = result.tokens, result.nfe, result.block_sizes, result.commit_step
            assert golden_runs.differences(run, *fields) == [], (run["cache"], run["gen_length"])
