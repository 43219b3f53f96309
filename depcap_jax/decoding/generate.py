"""`generate`: prompts as ids in, answers as ids out; pure, so that it works inside other programs."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from depcap_jax.decoding.loop import decode, finish, init_state
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.recording import decode_traced
from depcap_jax.decoding.state import DecodeResult, DecodeState, DiffusionLM, Status


def generate(
    model: DiffusionLM,
    prompt_ids: jax.Array | np.ndarray,
    prompt_lengths: jax.Array | np.ndarray | None = None,
    *,
    config: DecodeConfig | None = None,
    key: jax.Array | None = None,
    trace: bool = False,
) -> DecodeResult:
    """Decodes an answer of `config.gen_length` positions for each prompt.

    It is jitted, and may be called inside `jax.jit`, in a scan or on a mesh. One compilation serves all
    prompts of a shape and all thresholds. A row's answer does not depend on the rows beside it.

    Args:
      model: a `Transformer`, or anything with the methods of `DiffusionLM`.
      prompt_ids: [B, P] int32; row i's prompt is its first `prompt_lengths[i]` ids, the rest is padding.
      prompt_lengths: [B] int32; P by default.
      config: how to decode; the paper's DepCap by default.
      key: for sampling. One key: every row draws with it, so a row's answer is the same in any batch and
        equal prompts get equal answers. Keys [B]: one a row.
      trace: also record what every pass saw, for `plots` and `viewer`; tokens and counts stay the same.

    Raises:
      ValueError: on wrong shapes, ids or lengths. Inside jit values are not known, and a bad prompt ends
        its row with a status instead: see `raise_for_status`.
    """
    config = DecodeConfig() if config is None else config
    if not isinstance(config, DecodeConfig):
        raise ValueError(f"config must be a DecodeConfig, such as recipe('depcap'), got {config!r}")
    prompt_ids = _as_ints("prompt_ids", prompt_ids)
    if prompt_ids.ndim != 2:
        raise ValueError(f"prompt_ids must have shape [B, P], got {list(prompt_ids.shape)}")
    batch, width = prompt_ids.shape
    lengths = np.full(batch, width, np.int32) if prompt_lengths is None else prompt_lengths
    lengths = _as_ints("prompt_lengths", lengths)
    if lengths.shape != (batch,):
        raise ValueError(f"prompt_lengths must have shape [{batch}], got {list(lengths.shape)}")
    _check_prompts(model, prompt_ids, lengths, config.gen_length)
    run = _generate_traced if trace else _generate
    return run(model, prompt_ids, lengths, _as_data(config), _row_keys(key, batch, config))


def prepare(
    model: DiffusionLM,
    batch: int,
    width: int,
    *,
    config: DecodeConfig | None = None,
    key: jax.Array | None = None,
) -> None:
    """Compiles what `generate` needs for prompts of shape [batch, width], and decodes nothing."""
    config = DecodeConfig() if config is None else config
    # Rows with a bad length never come alive, so the loop ends before its first pass.
    nobody = np.full(batch, -1, np.int32)
    prompts = np.zeros((batch, width), np.int32)
    jax.block_until_ready(_generate(model, prompts, nobody, _as_data(config), _row_keys(key, batch, config)))


def generate_canvas(
    model: DiffusionLM,
    tokens: jax.Array | np.ndarray,
    open: jax.Array | np.ndarray,
    lengths: jax.Array | np.ndarray,
    *,
    config: DecodeConfig,
    key: jax.Array | None = None,
    trace: bool = False,
) -> DecodeResult:
    """Decodes the open positions [B, T] of canvases [B, T]; positions from lengths [B] on are padding."""
    assert not trace
    keys = _row_keys(key, len(tokens), config)
    return _generate_canvas(model, tokens, open, lengths, _as_data(config), keys)


@jax.jit
def _generate_canvas(
    model: DiffusionLM,
    tokens: jax.Array,
    is_open: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    keys: jax.Array | None,
) -> DecodeResult:
    state = init_state(model, config, tokens, is_open, lengths, key=keys)
    return finish(model, decode(model, state, config), config)


@jax.jit
def _generate(
    model: DiffusionLM,
    prompt_ids: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    keys: jax.Array | None,
) -> DecodeResult:
    return finish(model, decode(model, start(model, prompt_ids, lengths, config, keys), config), config)


@jax.jit
def _generate_traced(
    model: DiffusionLM,
    prompt_ids: jax.Array,
    lengths: jax.Array,
    config: DecodeConfig,
    keys: jax.Array | None,
) -> DecodeResult:
    state, trace = decode_traced(model, start(model, prompt_ids, lengths, config, keys), config)
    return dataclasses.replace(finish(model, state, config), trace=trace)


def start(
    model: DiffusionLM,
    prompt_ids: jax.Array,
    prompt_lengths: jax.Array,
    config: DecodeConfig,
    key: jax.Array | None = None,
) -> DecodeState:
    """The state of a fresh batch: each prompt, then its answer's open positions, then padding.

    Args:
      model: as for `generate`.
      prompt_ids: [B, P] int32.
      prompt_lengths: [B] int32.
      config: as for `generate`.
      key: [B] keys, or None without sampling.
    """
    width = prompt_ids.shape[1]
    column = jnp.arange(width)
    in_vocabulary = (prompt_ids >= 0) & (prompt_ids < model.config.vocab_size)
    fits = (prompt_lengths >= 0) & (prompt_lengths <= width)
    good = fits & jnp.all(in_vocabulary | (column >= prompt_lengths[:, None]), axis=1)
    lengths = jnp.clip(prompt_lengths, 0, width)[:, None]
    tokens = jnp.pad(jnp.where(in_vocabulary, prompt_ids, 0), ((0, 0), (0, config.gen_length)))
    position = jnp.arange(width + config.gen_length)
    open_ = (position >= lengths) & (position < lengths + config.gen_length)
    state = init_state(model, config, tokens, open_, lengths[:, 0] + config.gen_length, key=key)
    return dataclasses.replace(state, status=jnp.where(good, Status.OK, Status.BAD_PROMPT).astype(jnp.int32))


def _as_data(config: DecodeConfig) -> DecodeConfig:
    """The same decoder, its thresholds given as 1, 1.0 or an array being one program's data."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), config)


def _as_ints(name: str, value: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
    array = value if isinstance(value, jax.Array) else np.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"{name} must hold whole numbers, got {array.dtype}")
    return array.astype(np.int32)


def _check_prompts(
    model: DiffusionLM, ids: jax.Array | np.ndarray, lengths: jax.Array | np.ndarray, gen_length: int
) -> None:
    """Says which row is wrong and how; does nothing while tracing."""
    if isinstance(ids, Tracer) or isinstance(lengths, Tracer):
        return
    ids, lengths = np.asarray(ids), np.asarray(lengths)
    batch, width = ids.shape
    for row in np.flatnonzero((lengths < 0) | (lengths > width))[:1]:
        raise ValueError(f"prompt_lengths[{row}] is {lengths[row]}; prompt_ids has {width} columns")
    bad = ((ids < 0) | (ids >= model.config.vocab_size)) & (np.arange(width) < lengths[:, None])
    for row, column in np.argwhere(bad)[:1]:
        raise ValueError(
            f"prompt_ids[{row}, {column}] is {ids[row, column]}; ids are in [0, {model.config.vocab_size})"
        )
    longest = int(lengths.max()) if batch else 0
    if longest + gen_length > model.config.max_length:
        raise ValueError(
            f"a prompt of {longest} and an answer of {gen_length} exceed the model's context of "
            f"{model.config.max_length} positions"
        )


def _row_keys(key: jax.Array | None, batch: int, config: DecodeConfig) -> jax.Array | None:
    """A key a row, or None where nothing is drawn."""
    if config.sampling is None:
        return None
    if key is None:
        raise ValueError("sampling (temperature above 0) needs a key, such as jax.random.key(0)")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    keys: jax.Array = key if typed else jax.random.wrap_key_data(key)
    if keys.shape not in ((), (batch,)):
        raise ValueError(f"key must be one key or {batch} of them, got shape {list(keys.shape)}")
    return jnp.broadcast_to(keys, (batch,))
