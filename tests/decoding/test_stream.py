"""A decode turn by turn: the tokens of `generate`, the state given up, one read of the host per turn."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.stream import _begin, _turn

PROMPT = np.random.default_rng(5).integers(0, 500, 12).astype(np.int32)
CONFIG = dc.recipe("depcap", cache="dual", gen_length=16, l_min=4, l_max=8, tau_low=0.3, stop_at_eos=False)


@pytest.mark.parametrize("family", [pytest.param("llada", marks=pytest.mark.compiler), "dream"])
def test_it_ends_with_the_tokens_of_generate(family):
    model = small_model(family)
    snapshots = list(dc.stream(model, PROMPT, 12, config=CONFIG))
    expected = dc.generate(model, PROMPT[None], config=CONFIG, trace=True)
    seen = dc.replay(expected)
    np.testing.assert_array_equal(snapshots[-1].tokens, expected.tokens[0])
    np.testing.assert_array_equal(snapshots[-1].commit_step, expected.commit_step[0])
    np.testing.assert_allclose(snapshots[-1].confidence, seen.commit_confidence, rtol=1e-4)
    assert [snapshot.nfe for snapshot in snapshots] == list(range(1, seen.nfe + 1))
    for snapshot in snapshots:
        block = seen.block_at(snapshot.nfe)
        assert snapshot.block == (block.start, block.end)
        open_ = (seen.commit_step == 0) | (seen.commit_step > snapshot.nfe)
        np.testing.assert_array_equal(snapshot.tokens == model.config.mask_token_id, open_)
        np.testing.assert_array_equal(np.isnan(snapshot.confidence), open_)


def test_the_host_is_read_once_per_turn(monkeypatch):
    """Every way in which a value of an array reaches the host is counted."""
    kind, reads = type(jnp.zeros(1)), []

    def counted(way, inner):
        return lambda *args, **settings: reads.append(way) or inner(*args, **settings)

    for way in ("__array__", "__int__", "__bool__", "__float__", "__index__"):
        monkeypatch.setattr(kind, way, counted(way, getattr(kind, way)))
    batches, get = [], jax.device_get
    monkeypatch.setattr(jax, "device_get", lambda x: batches.append(len(jax.tree.leaves(x))) or get(x))
    passes = len(list(dc.stream(small_model("llada"), PROMPT, 12, config=CONFIG)))
    assert len(batches) == passes > 2
    before_the_first_turn = {"__int__": 1, "__bool__": 1}
    others = collections.Counter(way for way in reads if way != "__array__")
    assert others <= collections.Counter(before_the_first_turn)
    assert reads.count("__array__") <= sum(batches)


def test_the_cache_is_not_copied():
    """The state is donated: the compiled turn writes its new keys and values where the old ones were."""
    model = small_model("llada")
    state, _ = _begin(model, jnp.asarray(PROMPT)[None], jnp.array([12]), CONFIG, None)
    cache = sum(leaf.nbytes for leaf in jax.tree.leaves(state.cache.kv))
    memory = _turn.lower(model, state, CONFIG).compile().memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= cache
    after, _ = _turn(model, state, CONFIG)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.cache.kv))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_sampling_without_a_key_is_an_error_in_words():
    config = dc.recipe("confidence", gen_length=16, temperature=1.0)
    with pytest.raises(ValueError, match=r"sampling needs a key, such as jax.random.key\(0\), got None"):
        next(dc.stream(small_model("llada"), PROMPT, 12, config=config))


def test_a_row_that_does_not_end_well_is_an_error_after_what_was_told():
    model = small_model("llada")
    poisoned = jax.tree.map(lambda leaf: leaf, model)
    poisoned.embed[...] = model.embed[...].at[7].set(jnp.nan)
    with pytest.raises(dc.DecodeError, match="not finite"):
        list(dc.stream(poisoned, np.array([3, 7, 5], np.int32), 3, config=CONFIG))
    with pytest.raises(dc.DecodeError, match="vocabulary"):
        list(dc.stream(model, np.array([3, 700, 5], np.int32), 3, config=CONFIG))
