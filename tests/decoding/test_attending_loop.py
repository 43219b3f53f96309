"""Attention on its way through the loop: the eager twin, caches, batches, traces, and who cannot tell it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.generate import _generate
from depcap_jax.decoding.reference import decode_eagerly

GEN_LENGTH = 24
LENGTHS = np.array([5, 12])
PROMPTS = np.random.default_rng(3).integers(0, 500, (2, 16))
# Thresholds that this model meets: the groups and runs are to have several members.
RULES = {
    "clad": {"select": dc.CLAD(threshold=0.5, layers=2)},
    "dapd": {"select": dc.DAPD(tau_min=0.02, tau_max=0.1, threshold=0.3, layers=1)},
    "dawn": {"select": dc.DAWN(tau_sink=0.05, tau_edge=0.05, tau_induce=0.6, tau_low=0.3, layers=2)},
    "blocks": {"partition": dc.AttentionBlocks(l_max=9, alpha=0.5, slack=0.005, layers=2)},
    "both": {
        "partition": dc.AttentionBlocks(l_max=9, slack=0.005, layers=2),
        "select": dc.CLAD(threshold=0.5, layers=2),
    },
}
CACHES = {
    "none": dc.NoCache(together=16),  # the rows one after the other
    "prefix": dc.PrefixCache(margin=3, together=0),
    "dual": dc.DualCache(together=16),
}


def config_of(name: str, cache: str = "none") -> dc.DecodeConfig:
    parts: dict[str, Any] = {
        "partition": dc.FixedBlocks(block_length=8),
        "select": dc.ConfidenceThreshold(threshold=0.3),
        **RULES[name],
    }
    return dc.DecodeConfig(**parts, cache=CACHES[cache], gen_length=GEN_LENGTH, stop_at_eos=False)


def same_as_alone_and_eagerly(model: dc.Transformer, config: dc.DecodeConfig) -> dc.DecodeResult:
    together = dc.generate(model, PROMPTS, LENGTHS, config=config, trace=True)
    dc.raise_for_status(together)
    steps = np.asarray(together.commit_step)
    assert (steps > 0).all()
    assert together.nfe.max() < GEN_LENGTH, "some pass is to commit several"
    for row in range(2):
        twin = decode_eagerly(model, PROMPTS[row, : LENGTHS[row]].tolist(), config)
        assert twin.tokens == together.tokens[row].tolist()
        assert twin.commit_step == steps[row].tolist()
        assert twin.block_sizes == [size for size in together.block_sizes[row].tolist() if size]
    alone = dc.generate(model, PROMPTS[1:], LENGTHS[1:], config=config)
    np.testing.assert_array_equal(alone.commit_step[0], steps[1])
    return together


@pytest.mark.compiler
def test_the_twin_and_a_row_alone_decide_the_same():
    """In a cached pass of Dream, whose queries stand before what they predict; and what is recorded."""
    result = same_as_alone_and_eagerly(small_model("dream", 2), config_of("both", "dual"))
    seen, found = dc.replay(result, 1), 0
    for block in seen.blocks:
        closure = seen.partition_signals(block)["closure"]
        assert 0 < closure[block.size - 1] <= closure.max() <= 1.00001
    for step in range(1, seen.nfe + 1):
        for i, j in seen.pairs(step)["conflicts"]:
            assert seen.confidence[step - 1][[i, j]].min() >= 0.5
            assert (seen.commit_step[[i, j]] == step).sum() <= 1
            found += 1
    assert found, "the run is to have conflicts"


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("family", "name", "cache"),
    [
        ("llada", "clad", "none"),
        ("llada", "dapd", "prefix"),
        ("dream", "dapd", "none"),
        ("llada", "dawn", "dual"),
        ("dream", "dawn", "none"),
        ("dream", "blocks", "prefix"),
        ("llada", "both", "none"),
    ],
)
def test_each_rule_is_its_twin(family, name, cache):
    result = same_as_alone_and_eagerly(small_model(family, 2), config_of(name, cache))
    if name == "both":
        assert len({size for size in result.block_sizes.ravel().tolist() if size}) > 1


@pytest.mark.compiler
def test_scanned_layers_decode_to_the_same():
    model, config = small_model("dream", 2), config_of("dawn", "dual")
    one, other = (dc.generate(m, PROMPTS, LENGTHS, config=config) for m in (model, dc.stack_layers(model)))
    np.testing.assert_array_equal(one.commit_step, other.commit_step)
    np.testing.assert_array_equal(one.tokens, other.tokens)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bare:
    """A model of one's own, which has the methods of `DiffusionLM` and no others."""

    inner: dc.Transformer

    @property
    def config(self) -> dc.ModelConfig:
        return self.inner.config

    def hidden(self, input_ids: jax.Array, **settings: Any) -> tuple[jax.Array, Any]:
        return self.inner.hidden(input_ids, **settings)

    def on_canvas(self, length: int) -> Bare:
        return Bare(self.inner.on_canvas(length))

    def source(self, position: jax.Array) -> jax.Array:
        return self.inner.source(position)

    def logits(self, hidden: jax.Array) -> jax.Array:
        return self.inner.logits(hidden)

    def token_logits(self, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
        return self.inner.token_logits(hidden, tokens)

    def init_cache(self, batch: int, length: int) -> Any:
        return self.inner.init_cache(batch, length)


def lowered(model: Any, config: dc.DecodeConfig) -> str:
    return _generate.lower(
        model, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), config, None, trace=False
    ).as_text()


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_nothing_of_it_is_in_the_program_of_who_does_not_ask(cache):
    """To the letter the program of a model that cannot tell any; who asks has a softmax more in each pass."""
    model = small_model("dream", 2)
    config = dc.depcap(cache=CACHES[cache], gen_length=GEN_LENGTH, l_max=8)
    plain = lowered(model, config)
    assert plain == lowered(Bare(model), config)
    asking = dataclasses.replace(config, partition=dc.AttentionBlocks(l_max=8), select=dc.CLAD())
    weights = f"tensor<2x8x{PROMPTS.shape[1] + GEN_LENGTH}xf32>"
    assert weights not in plain
    assert weights in lowered(model, asking)


def test_a_model_that_cannot_tell_is_named():
    model: Any = Bare(small_model("llada", 2))
    with pytest.raises(
        ValueError, match=r"DAWN reads attention, which Bare does not tell: it has no method hid"
    ):
        dc.generate(model, PROMPTS, LENGTHS, config=config_of("dawn"))


def test_all_read_the_same_layers():
    config = dataclasses.replace(config_of("both"), select=dc.DAPD(layers=1))
    with pytest.raises(ValueError, match=r"AttentionBlocks reads that of the last 2, DAPD .* of the last 1"):
        dc.generate(small_model("llada", 2), PROMPTS, LENGTHS, config=config)


@dc.policy
class Quiet:
    """A cache that computes everything and hands on no attention."""

    def init(self, model: Any, batch: int, length: int) -> None:
        return None

    def __call__(self, model: Any, state: dc.DecodeState, sizes: Any, rows: Any, memory: None) -> Any:
        hidden, _ = model.hidden(state.tokens, lengths=state.length)
        index = state.block_start[:, None] + jnp.arange(sizes.window)[None]
        index = jnp.minimum(model.source(index), state.tokens.shape[1] - 1)
        passed = jnp.take_along_axis(hidden, index[..., None], axis=1)
        return dc.Pass(rows.live, passed, state.answer_end), None, None


def test_a_cache_that_hands_on_none_is_named():
    config = dataclasses.replace(config_of("clad"), cache=Quiet())
    with pytest.raises(ValueError, match=r"CLAD reads attention, which Quiet leaves out"):
        dc.generate(small_model("llada", 2), PROMPTS, LENGTHS, config=config)


@pytest.mark.compiler
def test_who_takes_the_turns_may_look_too():
    model, config = small_model("llada", 2), dc.confidence(block_length=8, gen_length=GEN_LENGTH)
    watched = jnp.broadcast_to(jnp.arange(40, dtype=jnp.int32), (2, 40))

    @jax.jit
    def look(model: dc.Transformer) -> tuple[dc.Attention | None, jax.Array]:
        state = dc.start(model, jnp.asarray(PROMPTS), jnp.asarray(LENGTHS), config)
        turn = dc.decode_step(model, state, config, reads=dc.Reads(attention=2))[1]
        full = model.hidden_and_attention(state.tokens, watched, 2, lengths=state.length)[2]
        return turn.prediction.attention, full

    told, full = look(model)
    assert told is not None
    for row, start in enumerate(LENGTHS):
        block = slice(start, start + 8)
        np.testing.assert_allclose(told.weights[row], full[row, block], atol=1e-5)
        np.testing.assert_allclose(told.within[row], full[row, block, block], atol=1e-5)
        np.testing.assert_array_equal(np.flatnonzero(told.open[row]), np.arange(start, start + GEN_LENGTH))
