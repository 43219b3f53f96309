"""iLLaDA and the models in Qwen's layouts, against the layers of transformers.

`golden/make_layouts.py` made what they are compared with.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_checkpoints import LAYOUTS, golden_config, golden_forward, golden_tensors, write_folder

import depcap_jax as dc
from depcap_jax.checkpoints.conversion import convert
from depcap_jax.checkpoints.loading import load
from depcap_jax.decoding.reference import decode_eagerly
from depcap_jax.models import ModelConfig
from depcap_jax.models.parameters import get_leaves

forward = jax.jit(lambda model, ids: model(ids))
hidden = jax.jit(lambda model, ids, **settings: model.hidden(ids, **settings))


def golden_model(layout, golden_dir, **settings):
    return load(golden_dir / layout, **LAYOUTS[layout], **settings)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_match_transformers(layout, golden_dir, tmp_path):
    ids, golden = golden_forward(layout)
    convert(golden_dir / layout, tmp_path / "out", verify=True, **LAYOUTS[layout])
    for model in (golden_model(layout, golden_dir), load(tmp_path / "out")[0]):
        logits = np.asarray(forward(model, ids))
        np.testing.assert_allclose(logits, golden, atol=5e-5)
        assert (logits.argmax(-1) == golden.argmax(-1)).all()


def test_every_part_of_a_layer_matters(golden_dir, tmp_path):
    """Without the norm of the keys, or with heads of another size, the golden logits are missed."""
    ids, golden = golden_forward("qwen3")
    tensors = golden_tensors("qwen3")
    for key in tensors:
        if key.endswith("k_norm.weight"):
            tensors[key] = np.ones_like(tensors[key])
    model, _ = load(write_folder(tmp_path, golden_config("qwen3"), tensors))
    assert np.abs(np.asarray(forward(model, ids)) - golden).max() > 0.1


@pytest.mark.parametrize("predicts_next", [False, True])
def test_where_a_position_is_predicted_can_be_told(predicts_next, golden_dir):
    model, _ = load(golden_dir / "qwen2", mask_token_id=5, predicts_next=predicts_next)
    expected = [[0, 0, 1, 8]] if predicts_next else [[0, 1, 2, 9]]
    assert model.source(jnp.array([[0, 1, 2, 9]])).tolist() == expected


def test_cached_pass_equals_plain_pass(golden_dir):
    """Keys are kept as they are compared: normed and rotated."""
    model = golden_model("qwen3", golden_dir)
    ids = jnp.asarray(golden_forward("qwen3")[0])
    plain, _ = hidden(model, ids)
    _, cache = hidden(model, ids, cache=model.init_cache(*ids.shape))
    part, _ = hidden(model, ids[:, 7:16], start=jnp.full(2, 7), cache=cache)
    np.testing.assert_allclose(part, plain[:, 7:16], atol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parameters_lie_on_a_mesh_by_the_table(layout, golden_dir):
    """Two devices divide every axis that is split, so only norms lie whole on both."""
    leaves = get_leaves(golden_model(layout, golden_dir, mesh=jax.make_mesh((2,), ("tensor",))))
    assert {name for name, leaf in leaves.items() if leaf.sharding.is_fully_replicated} == {
        name for name in leaves if "norm" in name
    }


def test_scanned_layers_give_the_same_logits(golden_dir):
    ids, golden = golden_forward("qwen3")
    model = golden_model("qwen3", golden_dir, scan_layers=True)
    np.testing.assert_allclose(np.asarray(forward(model, ids)), golden, atol=5e-5)


def test_config_of_an_older_checkpoint_has_no_norms(golden_dir):
    fields = golden_model("illada", golden_dir).config.to_dict()
    del fields["qk_norm"]
    assert ModelConfig.from_dict(fields).qk_norm is False


@pytest.mark.compiler
def test_decodes_as_the_eager_twin_does(golden_dir):
    """DepCap with a cache, on normed heads of their own size, with and without the shift."""
    prompt = golden_forward("qwen3")[0][0, :8].tolist()
    config = dc.depcap(gen_length=16, l_min=4, l_max=8, cache=dc.DualCache())
    model = golden_model("qwen3", golden_dir)
    for predicts_next in (False, True):
        model.config = dataclasses.replace(model.config, predicts_next=predicts_next)
        done = dc.generate(model, np.array([prompt]), config=config)
        expected = decode_eagerly(model, prompt, config)
        assert done.tokens[0].tolist() == list(expected.tokens)
        assert int(done.nfe[0]) == expected.nfe
