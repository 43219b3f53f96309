"""The jitted `generate` as an artefact: lowered here for machines that are not here."""

from __future__ import annotations

import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import depcap_jax as dc


@pytest.mark.compiler
def test_generate_exports_for_cpu_cuda_and_tpu_and_answers_the_same():
    model = golden_runs.model("llada")
    config = dc.recipe("depcap", cache="dual", gen_length=24, l_min=4, l_max=16, stop_at_eos=False)
    weights, structure = jax.tree.flatten(model)

    @jax.jit
    def answer(weights, prompt_ids, prompt_lengths):
        result = dc.generate(
            jax.tree.unflatten(structure, weights), prompt_ids, prompt_lengths, config=config
        )
        return {"tokens": result.tokens, "nfe": result.nfe, "status": result.status}

    ids = np.random.default_rng(0).integers(0, 500, (2, 16)).astype(np.int32)
    lengths = np.array([16, 9], np.int32)
    exported = export.export(answer, platforms=["cpu", "cuda", "tpu"])(weights, ids, lengths)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    reloaded = export.deserialize(exported.serialize())
    there, here = (
        reloaded.call(weights, jnp.asarray(ids), jnp.asarray(lengths)),
        answer(weights, ids, lengths),
    )
    for name in here:
        np.testing.assert_array_equal(there[name], here[name])
    np.testing.assert_array_equal(here["tokens"], dc.generate(model, ids, lengths, config=config).tokens)
