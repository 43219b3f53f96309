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
from compilations import compilations
from flax import nnx
from jax.extend import core
from small_checkpoints import LLADA_8B

import depcap_jax as dc
from depcap_jax.checkpoints.huggingface.config_json import from_config_json
from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.decoding.generate import _generate
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


def test_one_compilation_serves_a_sweep_and_all_prompts_of_a_bucket():
    model = golden_runs.model("llada")
    sizes = {"cache": "dual", "gen_length": 24, "l_min": 4, "l_max": 16, "stop_at_eos": False}
    answers = set()
    with compilations() as compiled:
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
    assert compiled.programs == ["_generate"]


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
    ids, lengths = jnp.zeros((2, 16), jnp.int32), jnp.array([3, 4])
    traced = _generate.trace(golden_runs.model("llada"), ids, lengths, config, None, trace=False)
    primitives = _jaxpr_primitives(traced.jaxpr.jaxpr)
    assert "while" in primitives
    forbidden = ("callback", "infeed", "outfeed", "device_put", "send", "recv", "debug", "transfer")
    assert not [name for name in primitives if any(word in name for word in forbidden)]
    text = traced.lower().as_text()
    assert text.count("stablehlo.while") >= 1
    assert not re.search(r"callback|infeed|outfeed|stablehlo\.(send|recv)", text)


def _inside_a_block(cache: str, canvas: int) -> tuple[Any, Any]:
    """A decoder, and the abstract state of one row inside its block of 16, `canvas` positions wide."""
    config = dc.recipe("depcap", cache=cache, gen_length=256)

    def state_of(model: dc.Transformer) -> dc.DecodeState:
        position = jnp.arange(canvas)[None]
        open_ = (position >= 100) & (position < 356)
        tokens = jnp.zeros((1, canvas), jnp.int32)
        return dc.init_state(model, tokens, open_, jnp.array([356]), config)

    return config, state_of


def _block_pass(model: Any, state: Any, kv: Any) -> Any:
    """The narrowest pass of a row alone: over its block."""
    from depcap_jax.decoding.compute.spans import Spans, Watch, _prepare, _Rows

    spans = Spans(jnp.ones(1, bool), state.block_start, state.block_end)
    rows = _Rows(state.tokens, state.length, state.block_start, state.block_start, spans)
    told, kv = _prepare(model, WIDTH, 256, Watch(), True, rows)(jnp.int32(0), kv)
    return told.hidden, kv


@pytest.mark.compiler
def test_a_cached_step_costs_the_layers_and_the_head_on_its_bucket(medium):
    """Operations of the narrowest pass, of a tile of the head, its choice and its commit, as compiled."""
    from depcap_jax.decoding.compute.prediction import predict, read_pairs
    from depcap_jax.decoding.loop import _commit

    canvas = 384
    config, state_of = _inside_a_block("dual", canvas)
    state = jax.eval_shape(state_of, medium)

    def step(model: Any, state: Any, kv: Any) -> Any:
        yes = jnp.ones(1, bool)
        hidden, kv = _block_pass(model, state, kv)
        hidden, start = hidden[:, :TILE], state.block_start
        position = start[:, None] + jnp.arange(TILE, dtype=jnp.int32)[None]
        block = predict(model, model.logits(hidden), position)
        block = block._replace(pairs=read_pairs(model, hidden, block, start * 0 + TILE))
        candidates = position < state.block_end[:, None]
        take, _, info = config.select(block, candidates, start, None)
        turn = dc.Turn(yes, ~yes, start, start, block, candidates, take, ~take, None, info, None)
        return _commit(model, state, turn), kv

    compiled = jax.jit(step, donate_argnums=2).lower(medium, state, state.cache.kv).compile()
    d, kv, ff = CONFIG.width, CONFIG.num_kv_heads * CONFIG.head_dim, CONFIG.ff_width
    products = 2 * d * d + 2 * d * kv + 3 * d * ff
    attention = 2 * canvas * CONFIG.num_heads * CONFIG.head_dim
    needed = 2 * (WIDTH * CONFIG.num_layers * (products + attention) + TILE * d * CONFIG.vocab_size)
    cost: Any = compiled.cost_analysis()
    measured = cost["flops"]
    assert needed <= measured <= 1.15 * needed, measured / needed
    assert config.sizes.window == 256


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_no_array_holds_the_logits_of_a_window(medium, cache):
    """Logits exist for a tile of positions at a time, of no more rows than the batch has."""
    config = dc.recipe("depcap", cache=cache, gen_length=256)
    ids, lengths = jnp.zeros((2, 128), jnp.int32), jnp.array([100, 128])
    text = _generate.lower(medium, ids, lengths, config, None, trace=False).as_text()
    shapes = re.findall(r"tensor<([\dx]+)x[fi]\d+>", text)
    of_logits = [shape for shape in shapes if CONFIG.vocab_size in map(int, shape.split("x"))]
    largest = max(np.prod([int(n) for n in shape.split("x")]) for shape in of_logits)
    assert config.sizes.window == 256
    assert largest == max(2 * TILE, CONFIG.width) * CONFIG.vocab_size  # a tile's, or the weights
    bodies = re.findall(rf"dot_general.*-> tensor<[\dx]*x{CONFIG.vocab_size}xf32>", text)
    assert len(bodies) == 1, "one product, whatever a turn looks at"


@pytest.mark.compiler
def test_bytes_grow_with_the_canvas_only_by_what_attention_reads(medium):
    def bytes_accessed(canvas: int) -> float:
        _, state_of = _inside_a_block("dual", canvas)
        state = jax.eval_shape(state_of, medium)
        compiled = jax.jit(_block_pass, donate_argnums=2).lower(medium, state, state.cache.kv).compile()
        cost: Any = compiled.cost_analysis()
        return cost["bytes accessed"]

    small, large = 384, 1536
    per_position = CONFIG.num_layers * 4 * 2 * CONFIG.num_kv_heads * CONFIG.head_dim  # keys and values
    scores = CONFIG.num_layers * 4 * CONFIG.num_heads * WIDTH  # one pass over the scores
    growth = (bytes_accessed(large) - bytes_accessed(small)) / (large - small)
    # The scores are written and read a few times by the softmax; a copy of the keys would add `per_position`.
    assert per_position <= growth <= per_position + 10 * scores < 2.5 * per_position, growth / per_position


@pytest.mark.compiler
def test_a_pass_that_does_not_run_costs_nothing(medium):
    """All layers' products of a width are in one computation, its loop's body: XLA moved none out of it."""
    config = dc.depcap(cache=dc.DualCache(), gen_length=64, l_max=48)
    cache: Any = config.cache
    ids = jnp.zeros((1, 128), jnp.int32)
    text = _generate.lower(medium, ids, jnp.array([128]), config, None, trace=False).compile().as_text() or ""
    place, caller, products = "", {}, []
    for line in text.splitlines():
        if match := re.match(r"(?:ENTRY )?%([\w.-]+) \(", line):
            place = match[1]
        if match := re.search(r" fusion\(.*calls=%([\w.-]+)", line):
            caller[match[1]] = place
        if match := re.search(rf"= f32\[(\d+),(?:{CONFIG.width}|{CONFIG.ff_width})\]\S* dot\(", line):
            products.append((int(match[1]), place))
    for width in cache.widths(medium, config.sizes, 1, 192).width:
        assert len({caller.get(place, place) for rows, place in products if rows == width}) == 1, width


@pytest.mark.compiler
def test_the_program_is_small():
    """Lines of the optimised program: at most half of the 17,527 and 0.7 of the 83,947 before the tiles.

    Of those 2,222 were tables of source lines, which grow with the caller's stack: they are not counted.
    """
    config, ids = dc.depcap(cache=dc.DualCache()), jax.ShapeDtypeStruct((1, 128), jnp.int32)
    for layers, most in ((2, (17_527 - 2_222) * 0.5), (32, (83_947 - 2_222) * 0.7)):
        model = dc.Transformer.abstract(dataclasses.replace(BENCH_CONFIG, num_layers=layers))
        lowered = _generate.lower(model, ids, jnp.array([128]), config, None, trace=False)
        program = re.split(r"^%", lowered.compile().as_text() or "", maxsplit=1, flags=re.MULTILINE)[1]
        lines = len(program.splitlines())
        assert lines <= most, (layers, lines)


@pytest.mark.compiler
def test_memory_beside_weights_and_cache_is_a_tile_of_logits():
    """LLaDA-8B's shape with one layer, 8 rows: the plan before the tiles had 4.25 GB of temporaries."""
    config = dataclasses.replace(from_config_json(LLADA_8B), num_layers=1)
    model = dc.Transformer.abstract(config, dtype=jnp.bfloat16)
    ids, lengths = jax.ShapeDtypeStruct((8, 256), jnp.int32), jnp.full(8, 256)
    decoder = dc.depcap(cache=dc.DualCache())
    compiled = _generate.lower(model, ids, lengths, decoder, None, trace=False).compile()
    memory: Any = compiled.memory_analysis()
    assert memory.temp_size_in_bytes <= 4.25e9 / 4, memory.temp_size_in_bytes


@pytest.mark.compiler
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_the_cache_is_updated_in_place(medium, cache):
    """In the compiled loop nothing copies a layer's keys or values, of the batch or of a row.

    A full pass brings new ones into the cache's layout (a transpose); the first ones are zeros (a broadcast).
    """
    config = dc.recipe("depcap", cache=cache, gen_length=64, l_max=32)
    ids, lengths = jnp.zeros((3, 128), jnp.int32), jnp.array([100, 9, 20])
    text = _generate.lower(medium, ids, lengths, config, None, trace=False).compile().as_text() or ""

    def copied(rows: int) -> set[str]:
        shape = re.escape(f"f32[{rows},{CONFIG.num_kv_heads},{CONFIG.head_dim},192]")
        names = re.findall(rf"= {shape}\S* copy\(%?([\w.-]+)\)", text)
        assert names, "the pattern is to find those of new keys and values"
        return {re.sub(r"[.\d]+$", "", name) for name in names}

    assert copied(3) <= {"wrapped_broadcast", "broadcast"}
    assert copied(1) <= {"transpose"}
