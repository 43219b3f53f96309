"""Ids in, ids out: `generate` for prompts, `generate_canvas` for open positions anywhere; both pure."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.loop import decode, finish, init_state
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.recording import decode_traced
from depcap_jax.decoding.state import DecodeResult, DecodeState, Status

Ids = jax.Array | np.ndarray


def generate(
    model: DiffusionLM,
    prompt_ids: Ids,
    prompt_lengths: Ids | None = None,
    *,
    config: DecodeConfig | None = None,
    key: jax.Array | None = None,
    trace: bool = False,
) -> DecodeResult:
    """Decodes an answer of `config.gen_length` positions for each prompt.

    It is jitted, and may be called inside `jax.jit`, `lax.scan`, `jax.vmap` and on a mesh. One compilation
    serves all prompts of a shape and all thresholds. A row's answer does not depend on the rows beside it.
    No gradient flows through it: inside a differentiated function its answers are constants.

    Args:
      model: a `Transformer`, or anything with the methods of `DiffusionLM`.
      prompt_ids: [B, P] integers; row i's prompt is its first `prompt_lengths[i]` ids, the rest is padding.
      prompt_lengths: [B] integers; P by default.
      config: how to decode; the paper's DepCap by default.
      key: for sampling. One key: every row draws with it, so a row's answer is the same in any batch and
        equal prompts get equal answers. Keys [B]: one per row.
      trace: also record what every pass looked at, for `plots` and `viewer`; tokens and counts stay the
        same.

    Raises:
      ValueError: on wrong shapes, and on wrong ids or lengths in NumPy arrays. What is wrong in arrays on a
        device, or inside jit, ends its row with a status instead: see `raise_for_status`.
    """
    config = _checked(model, config, trace)
    prompt_ids = as_integers("prompt_ids", prompt_ids, "B", "P")
    batch, width = prompt_ids.shape
    lengths = np.full(batch, width, np.int32) if prompt_lengths is None else prompt_lengths
    lengths = as_integers("prompt_lengths", lengths, batch)
    _check_prompts(model, prompt_ids, lengths, config.gen_length)
    return _generate(model, prompt_ids, lengths, as_data(config), row_keys(key, batch, config), trace)


def generate_canvas(
    model: DiffusionLM,
    tokens: Ids,
    open: Ids,
    lengths: Ids,
    *,
    config: DecodeConfig | None = None,
    key: jax.Array | None = None,
    trace: bool = False,
) -> DecodeResult:
    """Decodes the open positions of a canvas and leaves everything else as it is.

    With `stop_at_eos` a row ends at an end-of-text token: later gaps stay open, and hold the pad id.

    Args:
      model, config, key, trace: as for `generate`.
      tokens: [B, T] integers; what stands at open positions does not matter.
      open: [B, T] bool; from the first to the last of a row at most `config.gen_length` positions.
      lengths: [B] integers; positions from there on are padding.

    Returns:
      As `generate`, of the `config.gen_length` positions from each row's first open one.

    Raises:
      ValueError: on wrong shapes. A canvas with wrong ids, lengths or too long a span ends its row with
        a status.
    """
    config = _checked(model, config, trace)
    tokens = as_integers("tokens", tokens, "B", "T")
    open = open if isinstance(open, jax.Array) else np.asarray(open)
    if open.shape != tokens.shape or open.dtype != bool:
        raise ValueError(f"open must be bool {list(tokens.shape)}, got {open.dtype} {list(open.shape)}")
    lengths = as_integers("lengths", lengths, len(tokens))
    keys = row_keys(key, len(tokens), config)
    return _generate(model, tokens, lengths, as_data(config), keys, trace, open)


def prepare(
    model: DiffusionLM,
    batch: int,
    width: int,
    *,
    config: DecodeConfig | None = None,
    key: jax.Array | None = None,
    trace: bool = False,
) -> None:
    """Compiles what `generate` needs for prompts of shape [batch, width], and decodes nothing."""
    # Rows with a bad length, which is left to the status, never come alive: no pass is made.
    nobody, prompts = jax.device_put(np.full(batch, -1, np.int32)), np.zeros((batch, width), np.int32)
    jax.block_until_ready(generate(model, prompts, nobody, config=config, key=key, trace=trace))


def start(
    model: DiffusionLM,
    prompt_ids: jax.Array,
    prompt_lengths: jax.Array,
    config: DecodeConfig,
    key: jax.Array | None = None,
) -> DecodeState:
    """The state of a fresh batch: each prompt, then its answer's open positions, then padding.

    Args:
      model, config: as for `generate`.
      prompt_ids: [B, P] integers.
      prompt_lengths: [B] integers.
      key: [B] keys, or None without sampling.
    """
    chex.assert_rank([prompt_ids, prompt_lengths], [2, 1])
    chex.assert_equal_shape_prefix([prompt_ids, prompt_lengths], 1)
    prompt_ids, prompt_lengths = numerics.as_int32(prompt_ids), numerics.as_int32(prompt_lengths)
    width = prompt_ids.shape[1]
    lengths = jnp.clip(prompt_lengths, 0, width)[:, None]
    position = jnp.arange(width + config.gen_length, dtype=jnp.int32)[None]
    open_ = (position >= lengths) & (position < lengths + config.gen_length)
    fits = (prompt_lengths >= 0) & (prompt_lengths <= width)
    fits &= prompt_lengths + config.gen_length <= model.config.max_length
    tokens = jnp.pad(prompt_ids, ((0, 0), (0, config.gen_length)))
    return _begin(model, tokens, open_, lengths[:, 0] + config.gen_length, config, key, fits)


def _begin(
    model: DiffusionLM,
    tokens: jax.Array,
    open_: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    key: jax.Array | None,
    good: jax.Array,
) -> DecodeState:
    """The state of a canvas; rows that are not `good` [B], or hold invalid ids, have a status."""
    known = (tokens >= 0) & (tokens < model.config.vocab_size)
    position = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    good &= jnp.all(known | open_ | (position >= lengths[:, None]), axis=1)
    state = init_state(model, jnp.where(known, tokens, 0), open_, lengths, config, key=key)
    good &= state.answer_end - state.answer_start <= config.gen_length
    return dataclasses.replace(state, status=jnp.where(good, state.status, int(Status.BAD_PROMPT)))


def _run(model: DiffusionLM, state: DecodeState, config: DecodeConfig, trace: bool) -> DecodeResult:
    if not len(state.tokens):  # the shapes of one row's result, without the row
        row = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype), state)
        result = jax.eval_shape(lambda state: _run(model, state, config, trace), row)
        return jax.tree.map(lambda x: jnp.zeros((0, *x.shape[1:]), x.dtype), result)
    if not trace:
        return finish(model, decode(model, state, config), config)
    state, recorded = decode_traced(model, state, config)
    return dataclasses.replace(finish(model, state, config), trace=recorded)


@functools.partial(jax.jit, static_argnames="trace")
def _generate(
    model: DiffusionLM,
    tokens: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    keys: jax.Array | None,
    trace: bool,
    open_: jax.Array | None = None,
) -> DecodeResult:
    """Of prompts; or, if it is told what is `open_`, of a canvas."""
    model = jax.tree.map(lax.stop_gradient, model)
    if open_ is None:
        state = start(model, tokens, lengths, config, keys)
    else:
        fits = (lengths >= 0) & (lengths <= min(tokens.shape[1], model.config.max_length))
        state = _begin(model, tokens, open_, lengths, config, keys, fits)
    return _run(model, state, config, trace)


def typed_key(key: jax.Array | None, config: DecodeConfig, batch: int | None = None) -> jax.Array | None:
    """One key, or one per row of a `batch`, as typed ones, whichever kind was given; None without sampling.

    Raises:
      ValueError: if something is drawn and there is no key, or another number of them.
    """
    if config.sampling is None:
        return None
    given: Any = key
    try:
        is_typed = jnp.issubdtype(given.dtype, jax.dtypes.prng_key)
        keys = given if is_typed else jax.random.wrap_key_data(given)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"sampling needs a key, such as jax.random.key(0), got {key!r}") from None
    if keys.shape not in ((), (batch,)):
        allowed = "one key for all prompts" if batch is None else f"one key or {batch} of them"
        raise ValueError(f"sampling needs {allowed}, got keys of shape {list(keys.shape)}")
    return keys


def row_keys(key: jax.Array | None, batch: int, config: DecodeConfig) -> jax.Array | None:
    """One key per row [batch], or None where nothing is drawn; raises what `typed_key` raises."""
    keys = typed_key(key, config, batch)
    return None if keys is None else jnp.broadcast_to(keys, (batch,))


def _checked(model: DiffusionLM, config: DecodeConfig | None, trace: bool) -> DecodeConfig:
    if not hasattr(model, "hidden"):
        raise ValueError(
            f"model must have the methods of DiffusionLM, as what load returns, got {model!r:.80}"
        )
    if not isinstance(trace, bool):
        raise ValueError(f"trace must be True or False, got {trace!r:.80}")
    config = DecodeConfig() if config is None else config
    if not isinstance(config, DecodeConfig):
        raise ValueError(f"config must be a DecodeConfig, such as depcap(), got {config!r}")
    return config


def as_data(config: DecodeConfig) -> DecodeConfig:
    """The same decoder with its numbers as arrays, so that all their values share one program."""

    def convert(leaf: Any) -> Any:
        given = jnp.result_type(leaf)
        if jnp.issubdtype(given, jnp.bool_):
            return jnp.asarray(leaf)
        return jnp.asarray(leaf, jnp.int32 if jnp.issubdtype(given, jnp.integer) else jnp.float32)

    return jax.tree.map(convert, config)


def as_integers(name: str, value: Any, *shape: int | str) -> Ids:
    """Integers as int32, checked before they are converted; a letter in the shape stands for any size.

    Raises:
      ValueError: naming what is wrong: no integers, another shape, or, on the host, more than 32 bits.
    """
    expected = _shown(shape)
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} must have shape {expected}, got rows of different lengths, {reprlib.repr(value)}: pad "
            "them on the right, and tell their lengths"
        ) from None
    if isinstance(array, np.ndarray) and array.shape == (0,):  # a list of nothing: no rows, no columns
        array = np.zeros((0,) * len(shape), np.int32)
    huge = array.dtype == object and all(isinstance(item, int) for item in np.ravel(array))
    if not (huge or jnp.issubdtype(array.dtype, jnp.integer)):
        raise ValueError(f"{name} must hold integers, got {array.dtype}")
    if array.ndim != len(shape) or any(
        want != have for want, have in zip(shape, array.shape, strict=True) if isinstance(want, int)
    ):
        raise ValueError(f"{name} must have shape {expected}, got {_shown(array.shape)}")
    if isinstance(array, jax.Array):
        return numerics.as_int32(array)
    for wrong in array[(array < -(2**31)) | (array >= 2**31)][:1]:
        raise ValueError(f"{name} holds {wrong}, which 32 bits do not")
    return array.astype(np.int32)


def _shown(shape: Any) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _check_prompts(model: DiffusionLM, ids: Ids, lengths: Ids, gen_length: int) -> None:
    """Says which row is wrong and how, of what is on the host; arrays on devices are left to the status."""
    context = model.config.max_length
    if not isinstance(lengths, np.ndarray):
        return
    width = ids.shape[1]
    for row in np.flatnonzero((lengths < 0) | (lengths > width))[:1]:
        raise ValueError(f"prompt_lengths[{row}] is {lengths[row]}; prompt_ids has {width} columns")
    longest = int(lengths.max(initial=0))
    if longest + gen_length > context:
        raise ValueError(
            f"a prompt of {longest} and an answer of {gen_length} exceed the model's context of "
            f"{context} positions"
        )
    if not isinstance(ids, np.ndarray):
        return
    inside = np.arange(width)[None] < lengths[:, None]
    for row, column in np.argwhere(((ids < 0) | (ids >= model.config.vocab_size)) & inside)[:1]:
        raise ValueError(
            f"prompt_ids[{row}, {column}] is {ids[row, column]}; ids are in [0, {model.config.vocab_size})"
        )
