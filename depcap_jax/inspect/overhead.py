"""What does decoding cost beyond its forward passes? Ratios within one run, never absolute times.

A decode is replayed as its bare forward passes: the same widths and groups of rows, in the same order, as
jitted loops over the layers and over the head in its tiles, with nothing decided and nothing committed. A
ratio of 1.05 says that signals, partition, selection and commit together cost a twentieth of the passes.

An ideal program would compute no position that nobody needs. Its time is read off a line through the times
of passes, and of the head, at a few exact widths, measured between the decodes.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from depcap_jax.decoding.compute.prediction import TILE
from depcap_jax.decoding.generate import generate, start
from depcap_jax.decoding.loop import decode_step, is_live
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig, recipe, recipe_settings
from depcap_jax.models.config import ModelConfig
from depcap_jax.models.transformer import Transformer


class Shape(NamedTuple):
    """One forward pass."""

    width: int
    rows: int


class Step(NamedTuple):
    """One turn of the loop."""

    passes: tuple[Shape, ...]
    needed: int  # positions, of all rows, that had to be computed
    head_turns: int  # turns of the head's loop, each as many tiles as there are rows
    read: int  # positions, of all rows, that the head had to be read at


def useful(steps: Sequence[Step]) -> float:
    """The share of the computed positions, of all rows, that had to be computed."""
    computed = sum(shape.width * shape.rows for step in steps for shape in step.passes)
    return sum(step.needed for step in steps) / computed


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One decoder on one batch."""

    passes: int
    """Turns of the batch's loop."""
    seconds: float
    """Of the whole decode: the median. For people; compare ratios."""
    ratio: float
    """Whole decode over bare passes: the median over repeats, each measured side by side."""
    ideal_ratio: float
    """Whole decode over the passes of an ideal program, likewise."""
    useful: float
    """Share of the computed positions that were needed."""


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


def random_model(config: ModelConfig = BENCH_CONFIG) -> Transformer:
    """Random weights whose predictions are peaked and differ by position: every rule has work to do."""
    model = Transformer(config, rngs=nnx.Rngs(0))

    def rescale(path: Any, leaf: jax.Array) -> jax.Array:
        if leaf.ndim < 2:
            return leaf
        name = jax.tree_util.keystr(path)
        gain = 1.0 if "embed" in name else (12.0 if "head" in name else 2.0) / leaf.shape[0] ** 0.5
        return leaf / jnp.std(leaf) * gain

    return jax.tree_util.tree_map_with_path(rescale, model)


def record_passes(
    model: DiffusionLM, prompt_ids: np.ndarray, config: DecodeConfig, lengths: np.ndarray | None = None
) -> Iterator[Step]:
    """Decodes prompts [B, P] of `lengths` [B], or of P, turn by turn, and tells what each one computed."""

    @jax.jit
    def turn(model: Any, state: Any) -> Any:
        state, news = decode_step(model, state, config)
        return state, (news.cache.needed, news.cache.width, news.read, jnp.any(is_live(model, state, config)))

    batch = len(prompt_ids)
    lengths = np.full(batch, prompt_ids.shape[1]) if lengths is None else lengths
    cache: Any = config.cache
    widths = cache.widths(model, config.sizes, batch, prompt_ids.shape[1] + config.gen_length)
    tile = min(TILE, config.sizes.window)
    state = jax.jit(lambda m, p, n: start(m, p, n, config))(model, prompt_ids, lengths)
    alive = True
    while alive:
        state, news = turn(model, state)
        needed, width, read, alive = jax.device_get(news)
        passes = [
            Shape(each, rows)
            for each, rows in zip(*widths, strict=True)
            for _ in range(-(-int((width == each).sum()) // rows))
        ]
        tiles = int((-(-read // tile)).sum())
        yield Step(tuple(passes), int(needed.sum()), -(-tiles // batch), int(read.sum()))


@functools.partial(jax.jit, static_argnames="width", donate_argnames="kv")
def _bare_passes(
    model: Any, tokens: jax.Array, kv: Any, width: int, count: jax.Array
) -> tuple[jax.Array, Any]:
    """Runs the pass `count` times."""
    rows, canvas = tokens.shape
    start = None if width == canvas or kv is None else jnp.full(rows, canvas - width, jnp.int32)

    def run(index: jax.Array, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        inputs, _ = lax.optimization_barrier((tokens[:, :width], index))  # nothing is done before the loop
        hidden, kv = model.hidden(inputs, start=start, cache=carry[1])
        return carry[0] + jnp.sum(hidden), kv

    return lax.fori_loop(0, count, run, (jnp.float32(0), kv))


@jax.jit
def _bare_head(model: Any, hidden: jax.Array, tiles: jax.Array) -> jax.Array:
    """Reads the head `tiles` times at hidden states [B, tile, D]."""

    def tile(index: jax.Array, peak: jax.Array) -> jax.Array:
        return jnp.maximum(peak, jnp.max(model.logits(hidden + index.astype(hidden.dtype)), axis=-1))

    return lax.fori_loop(0, tiles, tile, jnp.zeros(hidden.shape[:2], jnp.float32))


class _Bare:
    """A model's passes and its head alone, on a canvas of `length`."""

    def __init__(self, model: DiffusionLM, length: int, cached: bool):
        self.model, self.length = model.on_canvas(length), length
        self.cache = (lambda rows: model.init_cache(rows, length)) if cached else (lambda rows: None)
        shape = jax.eval_shape(lambda: model.hidden(jnp.zeros((1, 1), jnp.int32))[0])
        self.state = jnp.ones(shape.shape[-1], shape.dtype)

    def replay(self, steps: list[Step], batch: int, tile: int) -> Any:
        """Runs the passes of a decode, in their order; those alike that follow each other in one call."""
        kv = {shape.rows: self.cache(shape.rows) for step in steps for shape in step.passes}
        states, total = jnp.broadcast_to(self.state, (batch, tile, self.state.size)), None
        for passes, alike in itertools.groupby(steps, key=lambda step: step.passes):
            alike = list(alike)
            for (width, rows), times in collections.Counter(passes).items():
                tokens, count = jnp.zeros((rows, self.length), jnp.int32), jnp.int32(times * len(alike))
                total, kv[rows] = _bare_passes(self.model, tokens, kv[rows], width, count)
            turns = jnp.int32(sum(step.head_turns for step in alike))
            total = total, _bare_head(self.model, states, turns)
        return total, kv

    def ideal(self, steps: list[Step]) -> float:
        """Seconds of passes that compute what is needed and nothing else."""
        widths = [w for w in (8, 16, 32, 64, 128, 256, 512) if w < self.length] + [self.length]
        reads = (1, 16, 64, 256)
        tokens, times = jnp.zeros((1, self.length), jnp.int32), 4

        def run_layers(width: int) -> Any:
            return _bare_passes(self.model, tokens, self.cache(1), width, jnp.int32(times))

        def run_head(count: int) -> Any:
            states = jnp.broadcast_to(self.state, (1, count, self.state.size))
            return _bare_head(self.model, states, jnp.int32(times))

        def usual(run: Callable[[int], Any], size: int) -> float:
            _seconds(run, size)  # compiles
            # The mean, not the best: a decode takes as long as the machine lets it on average, and the best
            # of a few short runs meets moments that no decode of many seconds has all through.
            return statistics.mean(_seconds(run, size) for _ in range(3)) / times

        layers, head = [usual(run_layers, width) for width in widths], [usual(run_head, n) for n in reads]

        def line(x: float, at: Sequence[int], seconds: list[float]) -> float:
            whole, rest = divmod(x, at[-1])  # more than the widest are several of them
            return whole * seconds[-1] + (float(np.interp(rest, at, seconds)) if rest else 0.0)

        return sum(line(step.needed, widths, layers) + line(step.read, reads, head) for step in steps)


def measure(
    model: DiffusionLM, prompt_ids: np.ndarray, name: str, *, repeats: int = 5, **settings: Any
) -> Measurement:
    """Times the recipe `name` on prompts [B, P] against its own bare passes, and against ideal ones."""
    # Any id will do as AdaBlock's delimiter: what is timed is looking for it.
    own = {"delimiter_ids": (0,)} if "delimiter_ids" in recipe_settings(name) else {}
    config = recipe(name, **{"stop_at_eos": False, **own, **settings})
    batch, width = prompt_ids.shape
    steps = list(record_passes(model, prompt_ids, config))
    cached = config.cache.init(model, 1, 1) is not None
    bare = _Bare(model, width + config.gen_length, cached)
    whole = functools.partial(generate, model, prompt_ids, config=config)
    replay = functools.partial(bare.replay, steps, batch, min(TILE, config.sizes.window))
    _seconds(whole)  # compiles
    _seconds(replay)
    times = [(_seconds(whole), _seconds(replay), bare.ideal(steps)) for _ in range(repeats)]
    return Measurement(
        passes=len(steps),
        seconds=statistics.median(whole for whole, _, _ in times),
        ratio=statistics.median(whole / bare for whole, bare, _ in times),
        ideal_ratio=statistics.median(whole / ideal for whole, _, ideal in times),
        useful=useful(steps),
    )


def _seconds(run: Callable[..., Any], *arguments: Any) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(run(*arguments))
    return time.perf_counter() - begin
