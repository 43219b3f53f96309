"""What the model says of each position: the head is read a tile of positions at a time.

Logits are large: 256 positions of LLaDA's vocabulary take 130 MB per row. So no array of all of them ever
exists: a loop computes the logits of one tile after the other and reduces each at once to what the
policies read. The number of tiles is data: the cost follows what is looked at on this turn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.attention import Attention
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.policy import Number, policy, setting

TILE = 16
"""Positions per tile. On CPUs a decode took 3 % longer with 32 and 6 % with 64; 8 cost what 16 do."""


class Reads(NamedTuple):
    """What a policy reads of each position beside its token and confidence; only that is computed."""

    entropy: bool = False
    top_k: int = 0
    """How many of the most likely tokens `Prediction.top` keeps; 0 for none."""
    pairs: bool = False
    """For selections only."""
    attention: int = 0
    """How many of the last layers `Prediction.attention` is the mean of; 0 for none."""


# The temperatures that a traced one is held to: below, the most likely token is drawn; above, any.
_COLDEST, _HOTTEST = 1e-6, 1e6


class Prediction(NamedTuple):
    """What the model says of the positions of a window; what was not asked for is None."""

    token: jax.Array
    """[B, W] int32: y, the token that would be committed."""
    log_confidence: jax.Array
    """[B, W] float32: log c, the log-probability of that token; -inf at positions that were not read."""
    summary: numerics.Summary
    """[B, W] each: the largest logit, and the mass of all others relative to it."""
    entropy: jax.Array | None = None
    """[B, W] float32: H, in nats."""
    top: numerics.Compressed | None = None
    """[B, W, K]: the most likely tokens, best first, with log-probabilities, and one floor for all others."""
    pairs: jax.Array | None = None
    """[B, W, W] float32: log p_i(y_j), what position i thinks of the token of position j."""
    open: jax.Array | None = None
    """[B, W] bool: which of the positions are still to be decoded; for partitions."""
    attention: Attention | None = None
    """What the positions look at."""


@policy
class Sampling:
    """Draws tokens from the distribution at `temperature`, within the nucleus `top_p` and the best `top_k`.

    It chooses the token only: a token's confidence stays its probability under the model itself.
    """

    temperature: Number = setting(default=1.0, low=0, high=_HOTTEST, doc="0 takes the most likely token")
    top_p: Number | None = setting(
        default=None, kind=float, low=0, high=1, doc="draw from the fewest tokens with this much probability"
    )
    top_k: int | None = setting(default=None, kind=int, low=1, doc="draw from this many most likely tokens")

    def __call__(self, logits: jax.Array, draw: Draw, position: jax.Array) -> jax.Array:
        """Tokens [B, W] drawn from logits [B, W, V] at canvas positions [B, W]; never one of logit -inf.

        The noise belongs to the row's key, its step and the position, so a row draws the same tokens
        whatever stands beside it and whatever the tile.
        """
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest = numerics.top_k(logits, self.top_k)[0][..., -1:]
            logits = jnp.where(logits < smallest, -jnp.inf, logits)
        # The best one is 0 whatever the temperature, so that nothing overflows and -inf is never drawn.
        best = jnp.max(logits, axis=-1, keepdims=True)
        # What is no number is not above the coldest either.
        warm = jnp.where(self.temperature > _COLDEST, jnp.minimum(self.temperature, _HOTTEST), _COLDEST)
        scaled = (logits - best) / warm
        if self.top_p is not None:
            scaled = jnp.where(_in_nucleus(scaled, self.top_p), scaled, -jnp.inf)

        def noise(row_key: jax.Array, row_step: jax.Array, row_position: jax.Array) -> jax.Array:
            step_key = jax.random.fold_in(row_key, row_step)
            position_keys = jax.vmap(jax.random.fold_in, (None, 0))(step_key, row_position)
            return jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[-1:], jnp.float32))(position_keys)

        return numerics.argmax(scaled + jax.vmap(noise)(draw.key, draw.step, position))


class Draw(NamedTuple):
    """What the noise of a pass belongs to, beside the position."""

    key: Any  # [B] random keys, or None without sampling
    step: jax.Array  # [B] int32: the row's passes so far


def _in_nucleus(logits: jax.Array, top_p: Number) -> jax.Array:
    """The fewest most likely tokens whose mass reaches `top_p`; always the best one."""
    order = jnp.argsort(-logits, axis=-1)
    probs = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    before = jnp.cumsum(probs, axis=-1) - probs
    first = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == 0
    return jnp.take_along_axis((before < top_p) | first, jnp.argsort(order, axis=-1), axis=-1)


def predict(
    model: DiffusionLM,
    logits: jax.Array,
    position: jax.Array,
    *,
    sampling: Sampling | None = None,
    draw: Draw | None = None,
) -> Prediction:
    """What logits [B, W, V] say of canvas positions [B, W]: tokens, and how likely they are.

    The mask id and the embedding's padding rows are never chosen, but keep their part of the
    distribution: a model that insists on them is not confident of anything else.
    """
    summary = numerics.summarise(logits)
    ids = lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2)
    banned = (ids == model.config.mask_token_id) | (ids >= model.config.vocab_size)
    # What has no probability still comes before what is banned.
    choosable = jnp.where(banned, -jnp.inf, jnp.maximum(logits, jnp.finfo(jnp.float32).min))
    if sampling is None or draw is None:
        token = numerics.argmax(choosable)
    else:
        token = sampling(choosable, draw, position)
    log_confidence = summary.log_confidence(numerics.take(logits, token[..., None])[..., 0])
    return Prediction(token, log_confidence, summary)


def look(logits: jax.Array, summary: numerics.Summary, reads: Reads) -> tuple[Any, Any]:
    """The entropy and the top K, or None for what is not asked for."""
    return (
        numerics.entropy(logits, summary) if reads.entropy else None,
        numerics.compress(logits, summary, reads.top_k) if reads.top_k else None,
    )


class Glance(NamedTuple):
    """How far a turn looks, and what for."""

    asked: jax.Array  # [B] bool: rows that ask the partition, which reads what it needs of all they look at
    reach: jax.Array  # [B] int32: positions from the windows' starts that the rows look at
    select: Reads  # what the selection reads, on every turn
    watch: Reads  # what those who watch read, on every turn
    partition: Reads  # what the partition reads


def read_head(
    model: DiffusionLM,
    hidden: jax.Array,
    position: jax.Array,
    glance: Glance,
    *,
    sampling: Sampling | None,
    draw: Draw,
) -> tuple[Prediction, Prediction, Prediction]:
    """What the selection, those who watch and the partition read of the first `glance.reach` positions.

    Each gets just what it asked for: nobody decides otherwise because somebody watches.

    Args:
      model: its head.
      hidden: [B, W, D] the hidden states that predict the window.
      position: [B, W] the canvas positions of the window.
      glance: what to read. For rows that do not ask the partition the last prediction means nothing.
      sampling: how tokens are drawn; None takes the most likely one.
      draw: for sampling.
    """

    def read(row: jax.Array, part: jax.Array, where: jax.Array) -> tuple[Prediction, tuple[Any, ...]]:
        logits = model.logits(part)
        its_draw = _of_rows(draw, row)
        prediction = predict(model, logits, where, sampling=sampling, draw=its_draw)

        select, watch, partition = (
            functools.partial(look, logits, prediction.summary, reads)
            for reads in (glance.select, glance.watch, glance.partition)
        )
        return prediction, (select(), watch(), numerics.if_any(_of_rows(glance.asked, row), partition))

    prediction, asked_for = _in_tiles(read, glance.reach, hidden, position, before=glance.asked)
    unread = lax.broadcasted_iota(jnp.int32, position.shape, 1) >= glance.reach[:, None]
    prediction = prediction._replace(log_confidence=jnp.where(unread, -jnp.inf, prediction.log_confidence))
    select, watch, partition = (prediction._replace(entropy=e, top=top) for e, top in asked_for)
    return select, watch, partition


def read_pairs(model: DiffusionLM, hidden: jax.Array, prediction: Prediction, count: jax.Array) -> jax.Array:
    """log p_i(y_j) [B, W, W] for the first `count` [B] positions j of each row; zeros beyond.

    A product of the hidden states [B, W, D] with the head's columns of the chosen tokens.
    """
    summary = numerics.Summary(*(field[:, None] for field in prediction.summary))

    def read(row: jax.Array, tokens: jax.Array) -> jax.Array:
        its_hidden, its_summary = _of_rows((hidden, summary), row)
        return its_summary.log_prob(jnp.swapaxes(model.token_logits(its_hidden, tokens), 1, 2))

    return jnp.swapaxes(_in_tiles(read, count, prediction.token), 1, 2)


def _in_tiles(
    function: Callable[..., Any], count: jax.Array, *whole: jax.Array, before: jax.Array | None = None
) -> Any:
    """`function` of the arrays [B, W, ...], a tile of W at a time, up to `count` [B] per row; zeros beyond.

    On each turn of the loop as many tiles run as there are rows, whatever rows they are of: a row that
    looks far does not make the others look. `function` is told the rows [B] that its tiles are of.

    Args:
      function: of rows and tiles; its results begin with both axes.
      count: positions to cover.
      *whole: what is cut into tiles.
      before: [B] bool: rows whose tiles come first.
    """
    batch, width = whole[0].shape[:2]
    size = min(TILE, width)
    most = -(-width // size) * batch
    tiles = lax.div(count.astype(jnp.int32) + (size - 1), jnp.full_like(count, size, jnp.int32))
    begin = jnp.cumsum(tiles, dtype=jnp.int32) - tiles
    if before is not None and batch > 1:
        first = jnp.where(before, tiles, 0)
        ahead = jnp.cumsum(first, dtype=jnp.int32)
        begin = jnp.where(before, ahead - first, ahead[-1] + begin - ahead)
    slots, inside = jnp.arange(batch, dtype=jnp.int32), jnp.arange(size, dtype=jnp.int32)[None]
    place = jnp.arange(width, dtype=jnp.int32)[None]

    def run(slot: jax.Array) -> Any:
        if batch == 1:
            row, flat = jnp.zeros_like(slot), slot[:, None] * size + inside
        else:
            mine = (slot[:, None] >= begin[None]) & (slot[:, None] < (begin + tiles)[None])
            row = jnp.minimum(numerics.first(mine), batch - 1)  # the last turn has tiles to spare
            position = (slot - jnp.take(begin, row, mode="clip"))[:, None] * size + inside
            flat = row[:, None] * width + jnp.minimum(position, width - 1)
        return function(row, *(_at(x, flat) for x in whole))

    def body(index: jax.Array, results: Any) -> Any:
        new = run(index * batch + slots)
        return jax.tree.map(
            lambda old, new: lax.dynamic_update_slice_in_dim(old, new, index * batch, axis=0), results, new
        )

    empty = jax.tree.map(
        lambda leaf: jnp.zeros_like(leaf, shape=(most, *leaf.shape[1:])), jax.eval_shape(run, slots)
    )
    turns = lax.div(jnp.sum(tiles, dtype=jnp.int32) + (batch - 1), jnp.int32(batch))
    results = lax.fori_loop(0, turns, body, empty)
    flat, read = begin[:, None] * size + place, place < count[:, None]

    def back(x: jax.Array) -> jax.Array:
        found = _at(x, flat) if batch > 1 else x.reshape(1, -1, *x.shape[2:])[:, :width]
        return jnp.where(read.reshape(*read.shape, *[1] * (found.ndim - 2)), found, jnp.zeros_like(found))

    return jax.tree.map(back, results)


def _at(x: jax.Array, index: jax.Array) -> jax.Array:
    """x [B, W, ...] at an index [...] into its first two axes as one."""
    return jnp.take(x.reshape(-1, *x.shape[2:]), index, axis=0, mode="clip")


def _of_rows(tree: Any, row: jax.Array) -> Any:
    """The rows [B] of arrays [B, ...]; of one row alone, the arrays."""
    if len(row) == 1:
        return tree
    return jax.tree.map(lambda x: x.at[row].get(mode="promise_in_bounds"), tree)
