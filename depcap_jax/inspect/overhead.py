"""What does decoding cost beyond its forward passes? Ratios within one run, never absolute times.

A decode is replayed as its bare forward passes: the same widths, in the same order, each one a jitted call
of the layers and of the head in its tiles, with nothing decided and nothing committed. A ratio of 1.05
says that signals, partition, selection and commit together cost a twentieth of the passes.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from depcap_jax.decoding.generate import generate, start
from depcap_jax.decoding.loop import decode_step, is_live
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.prediction import TILE
from depcap_jax.decoding.recipes import DecodeConfig, recipe, recipe_settings
from depcap_jax.models.config import ModelConfig
from depcap_jax.models.transformer import Transformer


class Shape(NamedTuple):
    """The shape of one forward pass."""

    width: int  # positions that are computed, the canvas if it is a full pass
    tile: int  # positions per tile of the head
    tiles: int


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One decoder on one batch."""

    recipe: str
    cache: str
    batch: int
    passes: int
    """Turns of the batch's loop."""
    tokens: int
    """Answer positions decoded, of all rows."""
    seconds: float
    """Of the whole decode: the median. For people; compare ratios."""
    ratio: float
    """Whole decode over bare passes: the median over repeats, each measured side by side."""


BENCH_CONFIG = ModelConfig(
    family="llada",
    vocab_size=16384,
    embedding_size=16384,
    width=512,
    num_layers=8,
    num_heads=8,
    num_kv_heads=8,
    head_dim=64,
    ff_width=1536,
    rope_theta=500_000.0,
    norm_eps=1e-5,
    qkv_bias=False,
    tie_embeddings=False,
    max_length=4096,
    mask_token_id=16383,
    pad_token_id=16382,
    eos_token_ids=(16382,),
    predicts_next=False,
)
"""The default yardstick: LLaDA's proportions, an eighth of its width, a quarter of its depth."""


def random_model(
    config: ModelConfig = BENCH_CONFIG, *, seed: int = 0, sharpness: float = 12.0
) -> Transformer:
    """Random weights whose predictions are peaked and differ by position: every rule has work to do."""
    model = Transformer(config, rngs=nnx.Rngs(seed))

    def rescale(path: Any, leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2:
            return leaf
        unit = leaf / jnp.std(leaf)
        if "embed" in name:
            return unit
        return unit * float((sharpness if "head" in name else 2.0) / np.sqrt(leaf.shape[0]))

    return jax.tree_util.tree_map_with_path(rescale, model)


def record_passes(model: DiffusionLM, prompt_ids: np.ndarray, config: DecodeConfig) -> Iterator[Shape]:
    """Decodes turn by turn and tells the shape of each forward pass."""

    @jax.jit
    def turn(model: Any, state: Any) -> Any:
        state, told = decode_step(model, state, config)
        return state, (told.cache.width[0], told.read[0], jnp.any(is_live(model, state, config)))

    lengths = jnp.full(prompt_ids.shape[0], prompt_ids.shape[1])
    state = jax.jit(lambda m, p, n: start(m, p, n, config))(model, jnp.asarray(prompt_ids), lengths)
    alive = True
    while alive:
        state, told = turn(model, state)
        width, count, alive = jax.device_get(told)
        tile = min(TILE, config.sizes.window)
        yield Shape(int(width), tile, -(-int(count) // tile))


@functools.partial(jax.jit, static_argnames="shape", donate_argnames="kv")
def _bare_pass(model: Any, tokens: jax.Array, kv: Any, shape: Shape) -> tuple[jax.Array, Any]:
    if shape.width == tokens.shape[1]:
        hidden, kv = model.hidden(tokens, cache=kv)
    else:
        size = min(shape.width + int(model.config.predicts_next), tokens.shape[1])
        first = jnp.full(tokens.shape[0], tokens.shape[1] - size)
        hidden, kv = model.hidden(tokens[:, :size], start=first, cache=kv)

    size = min(shape.tile, hidden.shape[1])

    def tile(index: jax.Array, peak: jax.Array) -> jax.Array:
        begin = jnp.minimum(index * size, hidden.shape[1] - size)
        part = lax.dynamic_slice_in_dim(hidden, begin, size, axis=1)
        return jnp.maximum(peak, jnp.max(model.logits(part), axis=-1))

    return lax.fori_loop(0, shape.tiles, tile, jnp.zeros((len(tokens), size), jnp.float32)), kv


def measure(
    model: DiffusionLM, prompt_ids: np.ndarray, name: str, *, repeats: int = 5, **settings: Any
) -> Measurement:
    """Times the recipe `name` on prompts [B, P] against its own bare passes."""
    # Any id will do as AdaBlock's delimiter: what is timed is looking for it.
    own = {"delimiter_ids": (0,)} if "delimiter_ids" in recipe_settings(name) else {}
    config = recipe(name, **{"stop_at_eos": False, **own, **settings})
    batch, width = prompt_ids.shape
    passes = list(record_passes(model, prompt_ids, config))
    canvas = jnp.zeros((batch, width + config.gen_length), jnp.int32)
    on_canvas = model.on_canvas(canvas.shape[1])
    cached = config.cache.init(model, 1, 1) is not None

    def whole() -> None:
        jax.block_until_ready(generate(model, prompt_ids, config=config))

    def bare() -> None:
        kv = model.init_cache(*canvas.shape) if cached else None
        peak = None
        for shape in passes:
            peak, kv = _bare_pass(on_canvas, canvas, kv, shape)
        jax.block_until_ready((peak, kv))

    whole()  # compiles
    bare()
    pairs = [(_seconds(whole), _seconds(bare)) for _ in range(repeats)]
    return Measurement(
        recipe=name,
        cache=settings.get("cache", "none"),
        batch=batch,
        passes=len(passes),
        tokens=batch * config.gen_length,
        seconds=statistics.median(whole for whole, _ in pairs),
        ratio=statistics.median(whole / bare for whole, bare in pairs),
    )


def measure_all(
    model: DiffusionLM,
    *,
    recipes: tuple[str, ...] = ("depcap",),
    caches: tuple[str, ...] = ("none", "prefix", "dual"),
    batches: tuple[int, ...] = (1, 4),
    prompt_length: int = 128,
    gen_length: int = 256,
    repeats: int = 5,
) -> Iterator[Measurement]:
    """The whole table, one line at a time, on random prompts."""
    rng = np.random.default_rng(0)
    for batch in batches:
        ids = rng.integers(0, model.config.mask_token_id, (batch, prompt_length), dtype=np.int32)
        for name in recipes:
            for cache in caches:
                yield measure(model, ids, name, cache=cache, gen_length=gen_length, repeats=repeats)


def _seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
