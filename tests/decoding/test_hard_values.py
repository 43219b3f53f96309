"""Values at the edge: infinite temperatures, integers of 64 bits, batches of nothing, policies that err."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.decoding.compute.prediction import Draw, predict

MASK = 510
QUICK: dict[str, Any] = {"gen_length": 16, "block_length": 8, "threshold": 0.3, "stop_at_eos": False}
BIG = 2**32 + 1


@pytest.fixture(scope="module")
def model() -> dc.Transformer:
    return small_model("llada")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -1.0, 1e7])
@pytest.mark.parametrize("kind", [float, np.float32, np.array])
def test_no_decoder_is_made_with_a_temperature_that_is_none(value, kind):
    with pytest.raises(ValueError, match=r"temperature must be a number in \[0, 1e\+06\], got "):
        dc.confidence(temperature=kind(value), **QUICK)


def drawn(model: dc.Transformer, logits: Any, *, temperature: Any, **limits: Any) -> np.ndarray:
    """Tokens [64] drawn under jit from logits [V]; the temperature is traced."""

    def draw(logits: jax.Array, temperature: jax.Array) -> jax.Array:
        sampling = dc.Sampling(temperature=temperature, **limits)
        position = jnp.arange(64, dtype=jnp.int32)[None]
        noise = Draw(jax.random.split(jax.random.key(0), 1), jnp.zeros(1, jnp.int32))
        return predict(
            model, jnp.broadcast_to(logits, (1, 64, 512)), position, sampling=sampling, draw=noise
        ).token

    return np.asarray(jax.jit(draw)(jnp.asarray(logits, jnp.float32)[None, None], jnp.float32(temperature)))


@pytest.mark.parametrize("limits", [{}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.5}])
@pytest.mark.parametrize("temperature", [np.inf, 3e38, np.nan, -1.0, 0.0, 1e-38, 1.0])
def test_no_temperature_lifts_the_ban_on_the_mask(model, temperature, limits):
    """Whatever is traced; the model insists on the mask, or on large numbers, or on nothing but the mask."""
    ids, rng = np.arange(512), np.random.default_rng(0)
    plain = rng.normal(0, 3, 512)
    for logits in (plain, np.where(ids == MASK, 50.0, plain), 1e37 * plain, -1e37 - plain):
        tokens = drawn(model, logits, temperature=temperature, **limits)
        assert not (tokens == MASK).any()
        # Of the last logits none is told from another: 1e37 is all that float32 holds of them.
        alike = len(np.unique(logits.astype(np.float32))) == 1
        assert alike == (logits.max() < 0)
        if limits.get("top_k") and not alike:
            best = np.argsort(-np.where(ids == MASK, -np.inf, logits.astype(np.float32)))[:5]
            assert np.isin(tokens, best).all()


def test_what_is_drawn_at_an_infinite_temperature_is_anything(model):
    """Uniform: 64 draws of 511 tokens are nearly all different ones."""
    tokens = drawn(model, np.random.default_rng(0).normal(0, 3, 512), temperature=np.inf)
    assert len(np.unique(tokens)) > 50


@pytest.mark.parametrize("sampled", [False, True])
def test_a_model_that_allows_the_mask_alone_commits_something_else(model, sampled):
    """All else has probability 0: the first id would win, were it not for the ban, and it is banned too."""
    first = jax.tree.map(lambda leaf: leaf, model)
    first.config = dataclasses.replace(model.config, mask_token_id=0)
    logits = np.where(np.arange(512) == 0, 1.0, -np.inf)
    if sampled:
        assert (drawn(first, logits, temperature=1.0) > 0).all()
    else:
        wide = jnp.broadcast_to(jnp.asarray(logits, jnp.float32)[None, None], (1, 4, 512))
        assert (predict(first, wide, jnp.zeros((1, 4), jnp.int32)).token > 0).all()


@pytest.mark.parametrize(
    ("ids", "length", "message"),
    [
        (np.array([1, BIG]), 2, f"prompt_ids holds {BIG}, which 32 bits do not"),
        ([1, 2**70], 2, f"prompt_ids holds {2**70}, which 32 bits do not"),
        (np.array([1, 2]), BIG, f"prompt_length holds {BIG}, which 32 bits do not"),
        (np.array([1, 2]), 1.5, "prompt_length must hold integers, got float64"),
        (np.array([1.5, 2]), 2, "prompt_ids must hold integers, got float64"),
        (np.array([[1, 2]]), 2, "prompt_ids must have shape [P], got [1, 2]"),
    ],
)
def test_a_stream_checks_its_prompt_as_generate_does(model, ids, length, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        next(dc.stream(model, ids, length, config=dc.confidence(**QUICK)))


@pytest.mark.parametrize("value", [BIG, -BIG])
def test_integers_of_64_bits_on_a_device_do_not_wrap(model, value):
    """Where JAX has them, what 32 bits do not hold is no id and no length."""
    config = dc.confidence(**QUICK)
    with jax.enable_x64(True):
        ids, lengths = jnp.array([[1, 2], [1, value], [1, 2]]), jnp.array([2, 2, abs(value) + 1])
        assert ids.dtype == lengths.dtype == np.int64
        result = dc.generate(model, ids, lengths, config=config)
        state = jax.jit(dc.start)(model, ids, lengths, config)
    bad = dc.Status.BAD_PROMPT
    assert result.status.tolist() == state.status.tolist() == [dc.Status.OK, bad, bad]


@pytest.mark.parametrize("trace", [False, True])
def test_no_rows_have_an_empty_result(model, trace):
    config = dc.depcap(gen_length=16, l_min=4, l_max=8, cache=dc.DualCache(), temperature=1.0)
    some = jax.eval_shape(
        lambda m, i: dc.generate(m, i, config=config, key=jax.random.key(0), trace=trace),
        *(model, jax.ShapeDtypeStruct((2, 5), jnp.int32)),
    )
    none = dc.generate(model, np.zeros((0, 5), np.int32), config=config, key=jax.random.key(0), trace=trace)
    assert jax.tree.structure(none) == jax.tree.structure(some)
    for got, like in zip(jax.tree.leaves(none), jax.tree.leaves(some), strict=True):
        assert (got.shape, got.dtype) == ((0, *like.shape[1:]), like.dtype)
    dc.raise_for_status(none)
    canvas = np.zeros((0, 20), np.int32)
    result = dc.generate_canvas(model, canvas, canvas > 0, canvas[:, 0], config=dc.confidence(**QUICK))
    assert result.tokens.shape == (0, 16)


def test_prompts_of_different_lengths_are_told_how_to_become_one_array(model):
    for ragged, shown in (([[1, 2], [3]], r"\[\[1, 2\], \[3\]\]"), ([[1, 2], 3], r"\[\[1, 2\], 3\]")):
        message = rf"prompt_ids must have shape \[B, P\], got rows of different lengths, {shown}: pad them"
        with pytest.raises(ValueError, match=message):
            dc.generate(model, ragged, config=dc.confidence(**QUICK))  # type: ignore[arg-type]  # meant


@pytest.mark.parametrize("key", [0, jnp.int32(3), jnp.zeros((3, 5)), np.zeros(2), "key"])
def test_what_is_no_key(model, key):
    with pytest.raises(ValueError, match=r"sampling needs a key, such as jax.random.key\(0\), got "):
        dc.generate(model, np.array([[1]]), config=dc.confidence(temperature=1.0, **QUICK), key=key)


class Plain:
    """A partition that is no pytree."""

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(4, 4, 4)

    def init(self, batch: int, gen_length: int) -> None:
        return None

    def __call__(self, prediction, start, remaining, memory) -> Any:
        return jnp.minimum(4, remaining), None, None


@dc.policy
class Halves(Plain):
    """Half of what is left, which need not be whole."""

    def __call__(self, prediction, start, remaining, memory):
        return remaining.astype(jnp.float32) * 0.5, None, None


@dc.policy
class OneForAll(Plain):
    """A length, but not one per row."""

    def __call__(self, prediction, start, remaining, memory):
        return 3, None, None


@dc.policy
class Shares:
    """A selection of numbers, which say nothing of yes and no."""

    def init(self, batch: int, gen_length: int) -> None:
        return None

    def __call__(self, prediction, candidates, start, memory):
        return candidates.astype(jnp.float32), None, None


@dc.policy
class Silent(Plain):
    """Answers with less than three things, or with nothing for a length."""

    answer: Any = dc.setting(default=None, kind=tuple, static=True)

    def __call__(self, prediction, start, remaining, memory):
        return self.answer


@dc.policy
class SilentSelect(Shares):
    """Says nothing."""

    def __call__(self, prediction, candidates, start, memory) -> Any:
        return None


@dc.policy
class NoBlock(Plain):
    """Blocks that may have no position."""

    shortest: Any = dc.setting(default=0, kind=float, static=True)

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(self.shortest, 4, 4)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"partition": Plain()}, r"partition must be a pytree, as @policy makes its class, got <.*Plain obj"),
        ({"partition": Halves()}, r"Halves must return integers of shape \[2\], got float32 \[2\]"),
        ({"partition": OneForAll()}, r"OneForAll must return integers of shape \[2\], got int(32|64) \[\]"),
        ({"partition": Silent()}, r"Silent must return .*, its memory and what it tells, got None"),
        ({"partition": Silent(answer=(1, 2))}, r"Silent must return .* what it tells, got \(1, 2\)"),
        ({"select": SilentSelect()}, r"SilentSelect must return .*, its memory and what it tells, got None"),
        ({"select": Shares()}, r"Shares must return flags of shape \[2, 16\], got float32 \[2, 16\]"),
        ({"partition": NoBlock()}, r"NoBlock.lengths: shortest must be an integer of at least 1, got 0"),
        ({"partition": NoBlock(shortest=2.5)}, r"NoBlock.lengths: shortest must be .* got 2.5"),
        ({"sampling": 0.7}, r"sampling must be a policy, such as Sampling\(temperature=0.7\), got 0.7"),
    ],
)
def test_a_policy_that_errs_is_named(model, parts, message):
    def decode() -> None:
        config = dc.DecodeConfig(**{"partition": dc.FixedBlocks(block_length=16), "gen_length": 16, **parts})
        dc.generate(model, np.array([[1, 2], [3, 4]]), config=config)

    with pytest.raises(ValueError, match=message):
        decode()


def test_what_is_no_model_and_no_trace(model):
    ids = np.array([[1, 2]])
    with pytest.raises(ValueError, match=r"model must have the methods of DiffusionLM, .* got None"):
        dc.generate(None, ids, config=dc.confidence(**QUICK))  # type: ignore[arg-type]  # the mistake meant
    wrong: list[Any] = ["yes", np.array([True, False])]
    for trace in wrong:
        with pytest.raises(ValueError, match="trace must be True or False, got "):
            dc.generate(model, ids, config=dc.confidence(**QUICK), trace=trace)


def test_a_list_of_no_prompts_is_a_batch_of_no_rows(model):
    assert dc.generate(model, [], config=dc.confidence(**QUICK)).tokens.shape == (0, 16)  # type: ignore[arg-type]
