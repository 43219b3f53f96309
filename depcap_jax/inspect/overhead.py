"""How much does decoding cost beyond its forward passes? Ratios within one run, never absolute times.

A decode is replayed as its bare forward passes: the same widths, in the same order, each one a jitted call
of the layers and the head, with nothing decided and nothing committed. A ratio of 1.05 says that signals,
partition, selection and commit together cost a twentieth of the passes.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from depcap_jax.decoding.caching import BlockCache
from depcap_jax.decoding.generate import generate, start
from depcap_jax.decoding.loop import choose_head_width, decode_step, head_widths, is_live, plan_turn
from depcap_jax.decoding.policy import check_count
from depcap_jax.decoding.recipes import CACHES, RECIPES, DecodeConfig, recipe, recipe_settings
from depcap_jax.decoding.state import DiffusionLM
from depcap_jax.models import ModelConfig, Transformer
from depcap_jax.text.fitting import answer_length


class Pass(NamedTuple):
    """The shape of one forward pass."""

    span: int | None  # positions that are recomputed; None: the whole canvas
    head: int  # positions that the head runs on


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
        return unit * (sharpness if "head" in name else 2.0) / np.sqrt(leaf.shape[0])

    return jax.tree_util.tree_map_with_path(rescale, model)


def record_passes(model: DiffusionLM, prompt_ids: np.ndarray, config: DecodeConfig) -> Iterator[Pass]:
    """Decodes turn by turn and tells the shape of each forward pass."""
    sizes, cache = config.sizes, config.cache

    @jax.jit
    def turn(model: Any, state: Any, config: Any) -> Any:
        planned, plan, opening = plan_turn(model, state, config)
        span = cache.choose(planned, plan, sizes) if isinstance(cache, BlockCache) else jnp.int32(-1)
        head = choose_head_width(planned, plan, opening, sizes)
        after = decode_step(model, state, config)
        return after, span, head, jnp.any(is_live(model, after, config))

    lengths = jnp.full(prompt_ids.shape[0], prompt_ids.shape[1])
    state, alive = start(model, jnp.asarray(prompt_ids), lengths, config), True
    while alive:
        state, span, head, alive = turn(model, state, config)
        spans = cache.widths(sizes) if isinstance(cache, BlockCache) else ()
        yield Pass(dict(enumerate(spans)).get(int(span)), head_widths(sizes)[int(head)][0])


@functools.partial(jax.jit, static_argnames="shape", donate_argnames="kv")
def _bare_pass(model: Any, tokens: jax.Array, kv: Any, shape: Pass) -> tuple[jax.Array, Any]:
    valid = jnp.ones(tokens.shape, bool)
    if shape.span is None:
        hidden, kv = model.hidden(tokens, valid=valid, cache=kv)
    else:
        size = min(shape.span + int(model.config.predicts_next), tokens.shape[1])
        first = jnp.full(tokens.shape[0], tokens.shape[1] - size)
        hidden, kv = model.hidden(tokens[:, :size], valid=valid, start=first, cache=kv)
    return model.logits(hidden[:, : shape.head]), kv


def measure(
    model: DiffusionLM,
    prompt_ids: np.ndarray,
    name: str,
    *,
    repeats: int = 5,
    **settings: Any,
) -> Measurement:
    """Times the recipe `name` on prompts [B, P] against its own bare passes."""
    # Any id will do as AdaBlock's delimiter: what is timed is looking for it.
    own = {"delimiter_ids": (0,)} if "delimiter_ids" in recipe_settings(name) else {}
    config = recipe(name, **{"stop_at_eos": False, **own, **settings})
    batch, width = prompt_ids.shape
    passes = list(record_passes(model, prompt_ids, config))
    canvas = jnp.zeros((batch, width + config.gen_length), jnp.int32)

    def whole() -> None:
        jax.block_until_ready(generate(model, prompt_ids, config=config))

    def bare() -> None:
        kv = config.cache.init(model, batch, canvas.shape[1])
        logits = None
        for shape in passes:
            logits, kv = _bare_pass(model, canvas, kv, shape)
        jax.block_until_ready((logits, kv))

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


def _seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def run(
    model: DiffusionLM | None = None,
    *,
    recipes: tuple[str, ...] = ("depcap",),
    caches: tuple[str, ...] = ("none", "prefix", "dual"),
    batches: tuple[int, ...] = (1, 4),
    prompt_length: int = 128,
    gen_length: int = 256,
    repeats: int = 5,
) -> Iterator[Measurement]:
    """The whole table, a line at a time; on `random_model()` unless a model is given."""
    model = random_model() if model is None else model
    rng = np.random.default_rng(0)
    for batch in batches:
        ids = rng.integers(0, model.config.mask_token_id, (batch, prompt_length), dtype=np.int32)
        for name in recipes:
            for cache in caches:
                yield measure(model, ids, name, cache=cache, gen_length=gen_length, repeats=repeats)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the benchmark's arguments."""
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=["depcap"], help="default: depcap")
    parser.add_argument(
        "--caches", nargs="+", choices=CACHES, default=["none", "dual"], help="default: none dual"
    )
    parser.add_argument(
        "--batches", nargs="+", type=int, default=[1], metavar="N", help="rows decoded together; default: 1"
    )
    parser.add_argument("--prompt-length", type=int, metavar="N", help="default: 128, or half the context")
    parser.add_argument("--gen-length", type=int, metavar="N", help="default: 256, or half the context")
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="how often each pair is measured; default: 3"
    )


def report(chosen: argparse.Namespace, model: DiffusionLM | None = None) -> None:
    """Prints the table, a line at a time.

    Raises:
      ValueError: if a count is below 1, or prompt and answer exceed the context.
    """
    model = random_model() if model is None else model
    context = model.config.max_length
    prompt_length = min(128, context // 2) if chosen.prompt_length is None else chosen.prompt_length
    gen_length = answer_length(context) if chosen.gen_length is None else chosen.gen_length
    check_count("--prompt-length", prompt_length, 1, context - 1)
    check_count("--gen-length", gen_length, 1, context - prompt_length)
    check_count("--repeats", chosen.repeats, 1)
    for batch in chosen.batches:
        check_count("--batches", batch, 1)
    print(
        f"{'recipe':12}{'cache':8}{'batch':>5}{'turns':>7}{'tokens/s':>10}{'whole / bare passes':>21}",
        flush=True,
    )
    for row in run(
        model,
        recipes=tuple(chosen.recipes),
        caches=tuple(chosen.caches),
        batches=tuple(chosen.batches),
        prompt_length=prompt_length,
        gen_length=gen_length,
        repeats=chosen.repeats,
    ):
        rate = row.tokens / row.seconds
        print(
            f"{row.recipe:12}{row.cache:8}{row.batch:5}{row.passes:7}{rate:10.1f}{row.ratio:21.3f}",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads the command line and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m depcap_jax.inspect.overhead",
        description="Divides whole decodes by their own bare forward passes, on a random yardstick model.",
        epilog="Example: python -m depcap_jax.inspect.overhead --caches dual --batches 1 4 --repeats 5",
    )
    add_arguments(parser)
    chosen = parser.parse_args(arguments)
    try:
        report(chosen)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
