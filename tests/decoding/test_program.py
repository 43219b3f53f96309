"""What the compiler knows of the compiled loop: how often, what is in it, and what a step costs."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import golden_runs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend import core

import depcap_jax as dc
from depcap_jax.decoding import caching
from depcap_jax.decoding.generate import _generate
from depcap_jax.decoding.loop import _choose_in, _commit
from depcap_jax.inspect.overhead import BENCH_CONFIG

CONFIG = dataclasses.replace(
    BENCH_CONFIG,
    vocab_size=4096,
    embedding_size=4096,
    width=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    ff_width=768,
    mask_token_id=4095,
    pad_token_id=4094,
    eos_token_ids=(4094,),
)
WIDTH = 16


@pytest.fixture(scope="module")
def medium() -> dc.Transformer:
    return dc.Transformer(CONFIG, rngs=nnx.Rngs(0))


def compilations() -> int:
    return getattr(_generate, "_cache_size")()  # noqa: B009 (not in the stubs)


def test_one_compilation_serves_a_sweep_and_all_prompts_of_a_bucket():
    model = golden_runs.model("llada")
    sizes = {"cache": "dual", "gen_length": 24, "l_min": 4, "l_max": 16, "stop_at_eos": False}
    before = compilations()
    answers = set()
    for tau_low, gamma, lambda_u, floor, length in [
        (0.8, -16.0, 1.2, 0.0, 5),
        (0.5, -8, 1, 0.5, 9),
        (1, jnp.float32(-2.0), 0.0, 1, 16),
    ]:
        config = dc.recipe(
            "depcap", tau_low=tau_low, gamma=gamma, lambda_u=lambda_u, certainty_floor=floor, **sizes
        )
        ids = np.random.default_rng(length).integers(0, 500, (1, 16))
        answers.add(str(dc.generate(model, ids, np.array([length]), config=config).tokens))
    assert len(answers) == 3
    assert compilations() == before + 1


def _jaxpr_primitives(jaxpr: Any) -> set[str]:
    names = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for value in jax.tree.leaves(
            equation.params,
            is_leaf=lambda x: isinstance(x, (core.Jaxpr, core.ClosedJaxpr)),
        ):
            if isinstance(value, core.ClosedJaxpr):
                names |= _jaxpr_primitives(value.jaxpr)
            elif isinstance(value, core.Jaxpr):
                names |= _jaxpr_primitives(value)
    return names


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_nothing_leaves_the_device_inside_the_loop(cache):
    config = dc.recipe("depcap", cache=cache, gen_length=24, l_max=16)
    args = golden_runs.model("llada"), jnp.zeros((2, 16), int), jnp.array([3, 4]), config, None
    traced = _generate.trace(*args)
    primitives = _jaxpr_primitives(traced.jaxpr.jaxpr)
    assert "while" in primitives
    forbidden = ("callback", "infeed", "outfeed", "device_put", "send", "recv", "debug", "transfer")
    assert not [name for name in primitives if any(word in name for word in forbidden)]
    text = traced.lower().as_text()
    assert text.count("stablehlo.while") >= 1
    assert not re.search(r"callback|infeed|outfeed|stablehlo\.(send|recv)", text)


def _cached_turn(model: dc.Transformer, canvas: int) -> tuple[Any, Any]:
    """The compiled dual-cache turn of a block of 16, and of its pass alone."""
    config = dc.recipe("depcap", cache="dual", gen_length=256)

    def state_of(model):
        tokens = jnp.zeros((1, canvas), jnp.int32)
        position = jnp.arange(canvas)[None]
        open_ = (position >= 100) & (position < 356)
        return dc.init_state(model, config, tokens, open_, jnp.array([356]))

    yes = jnp.ones(1, bool)
    plan = caching.Plan(active=yes, refresh=~yes)

    def forward(model, state, kv):
        return caching._span_pass(model, state, plan, state.block_end, kv, width=WIDTH, window=256)

    def turn(model, state, kv):
        hidden, kv = forward(model, state, kv)
        choice = _choose_in(model, hidden, state, config, plan, ~yes, width=WIDTH, at_start=False)
        return _commit(state, choice, plan, ~yes), kv

    state = jax.eval_shape(state_of, model)
    kv = state.kv
    compiled = [jax.jit(f, donate_argnums=2).lower(model, state, kv).compile() for f in (turn, forward)]
    return compiled[0], compiled[1]


def test_a_cached_step_costs_the_layers_and_the_head_on_its_bucket(medium):
    canvas = 384
    turn, _ = _cached_turn(medium, canvas)
    d, kv, ff = CONFIG.width, CONFIG.num_kv_heads * CONFIG.head_dim, CONFIG.ff_width
    products = 2 * d * d + 2 * d * kv + 3 * d * ff
    attention = 2 * canvas * CONFIG.num_heads * CONFIG.head_dim
    needed = 2 * WIDTH * (CONFIG.num_layers * (products + attention) + d * CONFIG.vocab_size)
    measured = turn.cost_analysis()["flops"]
    assert needed <= measured <= 1.15 * needed, measured / needed


def test_the_head_runs_on_the_window_only(medium):
    """No array of the program holds logits for more positions than the window has."""
    config = dc.recipe("depcap", cache="none", gen_length=64, l_max=16)
    lowered = _generate.lower(medium, jnp.zeros((1, 128), int), jnp.array([100]), config, None).as_text()
    rows = {int(rows) for rows in re.findall(rf"tensor<1x(\d+)x{CONFIG.vocab_size}xf32>", lowered)}
    assert max(rows) == config.sizes.window == 32


def test_bytes_grow_with_the_canvas_only_by_what_attention_reads(medium):
    small, large = 384, 1536
    bytes_accessed = [
        _cached_turn(medium, canvas)[1].cost_analysis()["bytes accessed"] for canvas in (small, large)
    ]
    per_position = CONFIG.num_layers * 4 * 2 * CONFIG.num_kv_heads * CONFIG.head_dim  # keys and values
    scores = CONFIG.num_layers * 4 * CONFIG.num_heads * WIDTH  # one pass over the scores
    growth = (bytes_accessed[1] - bytes_accessed[0]) / (large - small)
    # The scores are written and read a few times by the softmax; a copy of the keys would add `per_position`.
    assert per_position <= growth <= per_position + 10 * scores < 2.5 * per_position, growth / per_position


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_the_cache_is_updated_in_place(medium, cache):
    """In the compiled loop nothing copies a layer's keys or values.

    A full pass brings new ones into the cache's layout (a transpose); that is all.
    """
    config = dc.recipe("depcap", cache=cache, gen_length=64, l_max=32)
    ids, lengths = jnp.zeros((3, 128), jnp.int32), jnp.array([100, 9, 20])
    text = _generate.lower(medium, ids, lengths, config, None).compile().as_text() or ""
    shape = re.escape(f"f32[3,{CONFIG.num_kv_heads},{CONFIG.head_dim},192]")
    copies = re.findall(rf"= {shape}\S* copy\(%?([\w.-]+)\)", text)
    assert copies, "the pattern is to find the transposes of the full pass"
    assert {re.sub(r"[.\d]+$", "", name) for name in copies} <= {
        "transpose",
        "wrapped_broadcast",
        "broadcast",
    }
