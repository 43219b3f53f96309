"""The benchmark: what it replays is what was decoded."""

from __future__ import annotations

import dataclasses

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
def test_recorded_passes_are_those_of_the_decode():
    model = bench.random_model(SMALL)
    ids = np.random.default_rng(0).integers(0, 250, (1, 8), dtype=np.int32)
    config = dc.recipe("cap", cache="dual", block_length=8, gen_length=24, stop_at_eos=False)
    passes = list(bench.record_passes(model, ids, config))
    result = dc.generate(model, ids, config=config)
    assert len(passes) == int(result.nfe[0])
    full, step = bench.Step((bench.Shape(32, 1),), 32, 1, 8), bench.Step((bench.Shape(8, 1),), 8, 1, 8)
    assert passes.count(full) == 3, "a full pass per block"
    assert set(passes) <= {full, step}
    measured = bench.measure(model, ids, "cap", cache="dual", block_length=8, gen_length=24, repeats=1)
    assert measured.passes == len(passes)
    assert measured.tokens == 24
    assert 0.1 < measured.ratio < 10
    assert 0.1 < measured.ideal_ratio < 10
    assert measured.useful == 1
