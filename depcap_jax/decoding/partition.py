"""How far does the next block reach? The paper's first decision.

A partition is asked at each block start, after one full pass, with the predictions from there on.
Axis letters: B rows, W window positions, V vocabulary, K kept tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from depcap_jax.decoding import numerics
from depcap_jax.decoding.policy import check_count, check_range, policy, static
from depcap_jax.decoding.select import Prediction


class Partition(Protocol):
    """A rule for block lengths; a frozen dataclass that is a pytree and owns what it remembers."""

    def lengths(self, gen_length: int) -> tuple[int, int]:
        """The shortest and the longest block it may choose, but for the last one of an answer."""
        ...

    def window(self, gen_length: int) -> int:
        """How many positions from the block's start it needs predictions for."""
        ...

    def init(self, batch: int, gen_length: int) -> Any:
        """Its memory before the first block: a pytree whose leaves begin with the batch axis."""
        ...

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: Any
    ) -> tuple[jax.Array, Any]:
        """The next block's length [B], in [1, remaining], and the new memory.

        Args:
          prediction: of the positions [start, start + W) of each row; W is `window(gen_length)`, or less
            where no row has that many positions left. Those at `remaining` and beyond mean nothing.
          start: [B] the block's first position.
          remaining: [B] positions from there to the end of the answer, at least 1.
          memory: what the last call returned.
        """
        ...


@policy
class FixedBlocks:
    """Blocks of one length (semi-autoregressive LLaDA, Fast-dLLM)."""

    block_length: int = static(default=32)

    def __post_init__(self) -> None:
        check_count("block_length", self.block_length, 1)

    def lengths(self, gen_length: int) -> tuple[int, int]:
        """Always `block_length`."""
        length = min(self.block_length, gen_length)
        return length, length

    def window(self, gen_length: int) -> int:
        """Looks at nothing beyond the block."""
        return min(self.block_length, gen_length)

    def init(self, batch: int, gen_length: int) -> None:
        """Remembers nothing."""
        return None

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None]:
        """The fixed length, or what is left."""
        return jnp.minimum(self.block_length, remaining), None


@policy
class AdaBlocks:
    """AdaBlock: a block ends with the most confident delimiter predicted in the window ahead.

    The window spans a quarter of the answer. Without a delimiter of confidence `delimiter_threshold` or
    more, the block has the default length.
    """

    delimiter_ids: tuple[int, ...] = static()
    default_block_length: int = static(default=32)
    delimiter_threshold: float | jax.Array = 0.3

    def __post_init__(self) -> None:
        object.__setattr__(self, "delimiter_ids", tuple(self.delimiter_ids))
        if not self.delimiter_ids:
            raise ValueError("delimiter_ids must name at least one token id, got ()")
        for token in self.delimiter_ids:
            check_count("delimiter_ids", token, 0)
        check_count("default_block_length", self.default_block_length, 1)
        check_range("delimiter_threshold", self.delimiter_threshold, 0.0, 1.0)

    def lengths(self, gen_length: int) -> tuple[int, int]:
        """A delimiter may come at once, or at the window's end."""
        return 1, min(max(self.default_block_length, self.window(gen_length)), gen_length)

    def window(self, gen_length: int) -> int:
        """A quarter of the answer."""
        return max(gen_length // 4, 1)

    def init(self, batch: int, gen_length: int) -> None:
        """Remembers nothing."""
        return None

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None]:
        """Ends after the best delimiter, or at the default length."""
        index = jnp.arange(prediction.token.shape[-1])
        delimiters = jnp.asarray(self.delimiter_ids)
        is_delimiter = jnp.any(prediction.token[..., None] == delimiters, axis=-1)
        log_c = jnp.where(is_delimiter & (index < remaining[:, None]), prediction.log_confidence, -jnp.inf)
        best = jnp.argmax(log_c, axis=-1)
        trusted = jnp.max(log_c, axis=-1) >= jnp.log(self.delimiter_threshold)
        trusted &= jnp.max(log_c, axis=-1) > -jnp.inf  # a threshold of 0 must not trust what is absent
        default = jnp.minimum(self.default_block_length, remaining)
        return jnp.where(trusted, best + 1, default), None


class LastBlock(NamedTuple):
    """What DepGA keeps of the previous block start."""

    seen: jax.Array  # [B] bool: there was one
    start: jax.Array  # [B] where it was
    ahead: numerics.Compressed  # [B, 2 L_max, ...] the distributions from there on


class Signals(NamedTuple):
    """DepGA's view of the window ahead of a block start."""

    influence: jax.Array  # [B, W] I_k, nats
    uncertainty: jax.Array  # [B, W] H_k, nats
    score: jax.Array  # [B, W] S_k


@policy
class DepGABlocks:
    """DepGA-Block (DepCap, section 4.2): a block reaches as far as the last block's influence carries.

    S_k = I_k - lambda H_k over the window ahead, both smoothed and scaled; the block ends before the
    first S_k < 0, within [l_min, l_max]. The first block has length l_min.

    `certainty_floor` is not in the paper: a position whose entropy (nats) is below it never ends a block.
    Both signals are scaled inside the window, so where everything is certain the sign of S is noise.
    """

    l_min: int = static(default=8)
    l_max: int = static(default=128)
    top_k_cache: int = static(default=64)
    lambda_u: float | jax.Array = 1.2
    certainty_floor: float | jax.Array = 0.0

    def __post_init__(self) -> None:
        check_count("l_min", self.l_min, 1)
        check_count("l_max", self.l_max, self.l_min)
        check_count("top_k_cache", self.top_k_cache, 1)
        check_range("lambda_u", self.lambda_u, 0.0, None)
        check_range("certainty_floor", self.certainty_floor, 0.0, None)

    def lengths(self, gen_length: int) -> tuple[int, int]:
        """Between l_min and l_max."""
        return min(self.l_min, gen_length), min(self.l_max, gen_length)

    def window(self, gen_length: int) -> int:
        """Twice l_max: the next block starts up to l_max ahead and looks l_max further."""
        return min(2 * self.l_max, gen_length)

    def init(self, batch: int, gen_length: int) -> LastBlock:
        """Nothing seen yet."""
        shape = (batch, self.window(gen_length))
        kept = (*shape, self.top_k_cache)
        empty = numerics.Compressed(
            jnp.full(kept, -1, jnp.int32), jnp.zeros(kept, jnp.float32), jnp.zeros(shape, jnp.float32)
        )
        return LastBlock(jnp.zeros(batch, bool), jnp.zeros(batch, jnp.int32), empty)

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: LastBlock
    ) -> tuple[jax.Array, LastBlock]:
        """The index of the first negative score, clipped."""
        current = numerics.compress(prediction.logits, prediction.summary, self.top_k_cache)
        signals = self.signals(prediction, current, start, remaining, memory)
        width = signals.score.shape[-1]
        inside = jnp.arange(width) < jnp.minimum(remaining, self.l_max)[:, None]
        ends = (signals.score < 0) & (signals.uncertainty >= self.certainty_floor) & inside
        carried = jnp.where(jnp.any(ends, axis=-1), jnp.argmax(ends, axis=-1), remaining)
        length = jnp.where(memory.seen, jnp.clip(carried, self.l_min, self.l_max), self.l_min)
        seen = LastBlock(jnp.ones_like(memory.seen), start, _fit(current, memory.ahead))
        return jnp.minimum(length, remaining), seen

    def signals(
        self,
        prediction: Prediction,
        current: numerics.Compressed,
        start: jax.Array,
        remaining: jax.Array,
        memory: LastBlock,
    ) -> Signals:
        """I_k, H_k and S_k over the window of min(l_max, remaining) positions from a start."""
        width = min(self.l_max, prediction.token.shape[-1])
        window = jnp.minimum(remaining, width)
        offset = start - memory.start
        # Over all that was compressed, not just the window: a slice of the top K would make XLA sort.
        previous = jax.tree.map(lambda x: _shift(x, offset, current.floor.shape[-1]), memory.ahead)
        influence = numerics.kl_divergence(current, previous)[:, :width]
        # Further ahead than the last start looked (a gap was jumped over): nothing is known of an influence.
        known = offset[:, None] + jnp.arange(width) < memory.ahead.floor.shape[-1]
        influence = jnp.where(known, influence, 0.0)
        summary = numerics.Summary(*(x[:, :width] for x in prediction.summary))
        uncertainty = numerics.entropy(prediction.logits[:, :width], summary)

        def scaled(x: jax.Array) -> jax.Array:
            return numerics.robust_scale(numerics.smooth(x, window), window)

        score = scaled(influence) - self.lambda_u * scaled(uncertainty)
        return Signals(influence, uncertainty, score)


def _shift(x: jax.Array, offset: jax.Array, width: int) -> jax.Array:
    """x [B, W, ...] at [offset, offset + width) of each row, clamped to the last entry."""
    index = jnp.minimum(offset[:, None] + jnp.arange(width), x.shape[1] - 1)
    return jnp.take_along_axis(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)


def _fit(current: numerics.Compressed, like: numerics.Compressed) -> numerics.Compressed:
    """Pads a window that fewer positions were left for to the memory's fixed shape."""

    def pad(x: jax.Array, target: jax.Array) -> jax.Array:
        grow = [(0, want - have) for have, want in zip(x.shape, target.shape, strict=True)]
        # -1 is no token's id, so what is padded never matches.
        return jnp.pad(x, grow, constant_values=-1) if any(after for _, after in grow) else x

    return jax.tree.map(pad, current, like)
