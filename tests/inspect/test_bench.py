"""The benchmark: what it replays is what was decoded."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import depcap_jax as dc
from depcap_jax.inspect import overhead as bench

SMALL = dataclasses.replace(
    bench.BENCH_CONFIG,
    vocab_size=256,
    embedding_size=256,
    width=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    ff_width=128,
    mask_token_id=255,
    pad_token_id=254,
    eos_token_ids=(254,),
)


@pytest.mark.compiler
def test_recorded_passes_are_those_of_the_decode(monkeypatch):
    model = bench.random_model(SMALL)
    ids = np.random.default_rng(0).integers(0, 250, (1, 8), dtype=np.int32)
    config = dc.recipe("cap", cache="dual", block_length=8, gen_length=24, stop_at_eos=False)
    passes = list(bench.record_passes(model, ids, config))
    result = dc.generate(model, ids, config=config)
    assert len(passes) == int(result.nfe[0])
    full, step = bench.Step((bench.Shape(32, 1),), 32, 1, 8), bench.Step((bench.Shape(8, 1),), 8, 1, 8)
    assert passes.count(full) == 3, "a full pass per block"
    assert set(passes) <= {full, step}
    decodes = itertools.cycle([3.0, 2.0])  # the whole one, and its bare passes

    def seconds(run: Callable[..., Any], *size: int) -> float:
        jax.block_until_ready(run(*size))
        return 4.0 * size[0] if size else next(decodes)  # an ideal program's four passes: one per position

    monkeypatch.setattr(bench, "_seconds", seconds)
    measured = bench.measure(model, ids, "cap", cache="dual", block_length=8, gen_length=24, repeats=1)
    ideal = 3 * (32 + 8) + (len(passes) - 3) * (8 + 8)  # positions of the layers and of the head
    assert measured == bench.Measurement(len(passes), 3.0, 3 / 2, 3 / ideal, 1)


@pytest.mark.compiler
def test_recorded_passes_of_a_ragged_batch():
    """By hand: fixed blocks of 8, one token per pass; a block's passes share the narrowest width, and full
    passes run a row at a time, each at the width that holds it."""
    model = bench.random_model(SMALL)
    ids, lengths = np.random.default_rng(0).integers(0, 250, (3, 48), dtype=np.int32), np.array([4, 40, 48])
    cache = dc.DualCache(together=48)
    config = dc.vanilla(cache=cache, block_length=8, gen_length=16, stop_at_eos=False)
    short, whole = bench.Shape(16 + 32, 1), bench.Shape(64, 1)
    full = bench.Step((short, whole, whole), (4 + 40 + 48) + 3 * 16, 2, 3 * 16)
    steps = list(bench.record_passes(model, ids, config, lengths))
    assert len(steps) == 16
    assert [step.passes for step in steps].count(full.passes) == 2, "once per block"
    assert {step.passes for step in steps} == {full.passes, (bench.Shape(8, 3),)}
    assert steps[0].needed == full.needed
    assert steps[1].needed == 3 * 8
    computed = 2 * (48 + 64 + 64) + 14 * 3 * 8
    assert bench.useful(steps) == pytest.approx((2 * full.needed + 14 * 3 * 8) / computed)


@pytest.mark.compiler
def test_a_ragged_batch_of_real_prompts_wastes_at_most_a_fifth():
    model, tokenizer = dc.load("tiny-dream")
    config = dc.depcap(gen_length=96, cache=dc.DualCache())
    prompts = [dc.TextGenerator(model, tokenizer, config).encode(p.prompt) for p in dc.tiny.held_out()[8:16]]
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    ids = np.zeros((8, lengths.max()), np.int32)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    assert bench.useful(list(bench.record_passes(model, ids, config, lengths))) >= 0.8
