"""Where JAX has integers of 64 bits (`jax_enable_x64`), nothing changes."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.recipes import CACHES

HERE = Path(__file__).parent
CORE = ("canvas", "hard_values", "inside_programs", "own_policies", "partition", "prediction", "robustness")


# A sparse cache does not hold all keys that `spread` reads the attention to.
PAIRS = [(name, cache) for name in dc.RECIPES for cache in CACHES if (name, cache) != ("spread", "sparse")]


@pytest.mark.parametrize(("name", "cache"), PAIRS)
def test_every_decoder_has_the_types_of_32_bits(name, cache):
    """Traced only: what the loop carries keeps its types, and what it returns has no others."""
    own = {"delimiter_ids": (5,)} if name == "adablock" else {}
    config = dc.recipe(name, cache=cache, gen_length=16, **own)
    model, key = small_model("dream"), jax.random.key(0)
    config = dataclasses.replace(config, sampling=dc.Sampling(top_k=4, top_p=0.5))
    with jax.enable_x64(True):
        ids, lengths = jnp.zeros((2, 5), jnp.int64), jnp.full(2, 5, jnp.int64)
        result = jax.eval_shape(
            lambda m, i, n: dc.generate(m, i, n, config=config, key=key, trace=True), model, ids, lengths
        )
    wide = [leaf for leaf in jax.tree.leaves(result) if leaf.dtype.itemsize > 4]
    assert not wide


@dc.policy
class Counting(dc.Partition):
    """A person's own partition, whose sums are as wide as JAX makes them: lengths, memory and info."""

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(1, 8, 8)

    def init(self, batch: int, gen_length: int) -> jax.Array:
        return jnp.zeros(batch, jnp.int32)

    def __call__(self, prediction, start, remaining, memory):
        length = 1 + jnp.sum(prediction.token % 2, axis=1, dtype=int)
        return length, memory + length, {"length": length}


def test_what_a_person_s_policy_makes_wide_is_narrowed():
    config = dc.DecodeConfig(partition=Counting(), select=dc.TopOne(), gen_length=16)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        result = jax.eval_shape(
            lambda m, i: dc.generate(m, i, config=config, trace=True),
            *(small_model("llada"), jnp.zeros((2, 5), jnp.int32)),
        )
    assert result.trace.partition["length"].dtype == np.int64
    assert result.tokens.dtype == np.int32


@pytest.mark.compiler
@pytest.mark.parametrize("name", ["depcap", "adablock"])
def test_integers_of_64_bits_change_nothing(name):
    model = small_model("llada")
    own = {"delimiter_ids": (5,)} if name == "adablock" else {"l_min": 4, "l_max": 8}
    config = dc.recipe(name, gen_length=16, stop_at_eos=False, **own)
    config = dataclasses.replace(config, cache=dc.DualCache(together=16))  # full passes in groups
    ids = np.array([[4, 5], [6, 7], [8, 9]])
    expected = dc.generate(model, ids, config=config)
    with jax.enable_x64(True):
        result = dc.generate(model, ids, config=config)
    for field in ("tokens", "lengths", "nfe", "block_sizes", "commit_step", "status"):
        np.testing.assert_array_equal(getattr(result, field), getattr(expected, field))
        assert getattr(result, field).dtype == np.int32, field


@pytest.mark.compiler
def test_the_core_tests_pass_with_them():
    """Once more in a process of its own, with the switch as a person sets it."""
    files = [str(HERE / f"test_{name}.py") for name in CORE]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    done = subprocess.run(
        command,
        env={**os.environ, "JAX_ENABLE_X64": "1"},
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
