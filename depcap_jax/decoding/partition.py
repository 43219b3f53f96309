"""How far does the next block reach? The paper's first decision.

A partition is asked at each block start, with the predictions from there on.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from depcap_jax.decoding.compute import numerics
from depcap_jax.decoding.compute.prediction import Prediction, Reads
from depcap_jax.decoding.policy import Number, check_integer, policy, setting


class Lengths(NamedTuple):
    """What shapes depend on."""

    shortest: int  # the shortest block, but for the last one of an answer
    longest: int  # the longest block
    window: int  # positions from a block's start that the partition looks at


class Partition(Protocol):
    """A rule for block lengths. A class may also have two attributes:

    `reads`, a `Reads`: what it reads of each position; nothing beside token and confidence by default.
    `slides`, a bool: True to be asked on every turn, with a window that begins at the first open position,
    instead of at block starts only. In a cached pass such a window reaches as far as the pass did, and what
    was committed behind it keeps the keys and values of the mask until the next full pass (`refresh_every`).
    """

    def lengths(self, gen_length: int) -> Lengths:
        """How long its blocks may be, and how far it looks, in answers of `gen_length`."""
        ...

    def init(self, batch: int, gen_length: int) -> Any:
        """Its memory before the first block: None, or a pytree whose leaves begin with the batch axis."""

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: Any
    ) -> tuple[jax.Array, Any, Any]:
        """The next block's length [B] integer, in [1, min(remaining, longest)]; the new memory; and its info.

        The info is what a trace records: any pytree of arrays that begin with the batch axis, or None.

        Args:
          prediction: of the window: the positions [start, start + W) of each row. Those at `remaining`
            and beyond mean nothing.
          start: [B] the window's first position, from the answer's start.
          remaining: [B] positions from there to the end of the answer, or of what the pass computed; at
            least 1.
          memory: what the last call returned.
        """
        ...


@policy
class FixedBlocks(Partition):
    """Blocks of one length (semi-autoregressive LLaDA, Fast-dLLM)."""

    block_length: int = setting(default=32, low=1, doc="length of every block")

    def lengths(self, gen_length: int) -> Lengths:
        """Always `block_length`; it looks no further."""
        length = min(self.block_length, gen_length)
        return Lengths(length, length, length)

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """The fixed length, or what is left."""
        return jnp.minimum(self.block_length, remaining), None, None


@policy
class AdaBlocks(Partition):
    """AdaBlock: a block ends with the most confident delimiter predicted in the window ahead.

    The window spans a quarter of the answer. Without a delimiter of confidence `delimiter_threshold` or
    more, the block has the default length.
    """

    delimiter_ids: tuple[int, ...] = setting(
        kind=tuple, low=0, doc="ids of the delimiter; those of a line break by default"
    )
    default_block_length: int = setting(default=32, low=1, doc="length where no delimiter is confident")
    delimiter_threshold: Number = setting(
        default=0.3, low=0, high=1, doc="least confidence of a delimiter that ends a block"
    )

    def lengths(self, gen_length: int) -> Lengths:
        """A delimiter may come at once, or at the window's end."""
        window = max(gen_length // 4, 1)
        return Lengths(1, min(max(self.default_block_length, window), gen_length), window)

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: None
    ) -> tuple[jax.Array, None, None]:
        """Ends after the best delimiter, or at the default length."""
        delimiters = jnp.asarray(self.delimiter_ids, jnp.int32)[None, None]
        is_delimiter = jnp.any(prediction.token[..., None] == delimiters, axis=-1)
        inside = jnp.arange(prediction.token.shape[-1], dtype=jnp.int32)[None] < remaining[:, None]
        log_c = jnp.where(is_delimiter & inside, prediction.log_confidence, -jnp.inf)
        best, best_log_c = numerics.argmax(log_c), jnp.max(log_c, axis=-1)
        # A threshold of 0 must not trust what is absent.
        trusted = (best_log_c >= jnp.log(self.delimiter_threshold)) & (best_log_c > -jnp.inf)
        default = jnp.minimum(self.default_block_length, remaining)
        return jnp.where(trusted, best + 1, default), None, None


class LastBlock(NamedTuple):
    """What DepGA keeps of the previous block start."""

    known: jax.Array  # [B] bool: there was one
    start: jax.Array  # [B] int32: where it was
    ahead: numerics.Compressed  # [B, W, ...]: the distributions from there on


class Signals(NamedTuple):
    """DepGA's view of the window ahead of a block start, for the trace."""

    influence: jax.Array  # [B, l_max] I_k, nats; 0 at the first block, which has no block before it
    uncertainty: jax.Array  # [B, l_max] H_k, nats
    score: jax.Array  # [B, l_max] S_k; 0 at the first block


@policy
class DepGABlocks(Partition):
    """DepGA-Block (DepCap, section 4.2): a block reaches as far as the last block's influence carries.

    S_k = I_k - lambda H_k over the window ahead, both smoothed and scaled; the block ends before the
    first S_k < 0, within [l_min, l_max]. The first block has length l_min.

    `certainty_floor` is not in the paper. Both signals are scaled inside the window, so where everything is
    certain the sign of S is noise: a position whose entropy is below the floor never ends a block.
    """

    l_min: int = setting(default=8, low=1, doc="shortest block")
    l_max: int = setting(default=128, low=1, doc="longest block")
    top_k_cache: int = setting(
        default=64, low=1, high=numerics.MOST_KEPT, doc="tokens kept of each distribution"
    )
    lambda_u: Number = setting(default=1.2, low=0, doc="weight of uncertainty against influence")
    certainty_floor: Number = setting(
        default=0.0, low=0, doc="a position whose entropy (nats) is below never ends a block"
    )

    def __post_init__(self) -> None:
        check_integer("l_max", self.l_max, self.l_min)

    @property
    def reads(self) -> Reads:
        """The entropy, and the distributions compressed."""
        return Reads(entropy=True, top_k=self.top_k_cache)

    def lengths(self, gen_length: int) -> Lengths:
        """The next block starts up to l_max ahead and looks l_max further."""
        l_min, l_max = min(self.l_min, gen_length), min(self.l_max, gen_length)
        return Lengths(l_min, l_max, min(2 * self.l_max, gen_length))

    def init(self, batch: int, gen_length: int) -> LastBlock:
        """Nothing known yet."""
        shape = (batch, self.lengths(gen_length).window)
        nothing = numerics.Compressed.none(shape, self.top_k_cache)
        return LastBlock(jnp.zeros(batch, bool), jnp.zeros(batch, jnp.int32), nothing)

    def __call__(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: LastBlock
    ) -> tuple[jax.Array, LastBlock, Signals]:
        """The index of the first negative score, clipped."""
        assert prediction.top is not None
        signals = self._signals(prediction, start, remaining, memory)
        inside = jnp.arange(signals.score.shape[-1], dtype=jnp.int32)[None] < remaining[:, None]
        ends = (signals.score < 0) & (signals.uncertainty >= self.certainty_floor) & inside
        carried = jnp.clip(numerics.first(ends), self.l_min, self.l_max)
        length = jnp.where(memory.known, carried, self.l_min)
        now = LastBlock(jnp.ones_like(memory.known), start, prediction.top)
        return jnp.minimum(length, remaining), now, signals

    def _signals(
        self, prediction: Prediction, start: jax.Array, remaining: jax.Array, memory: LastBlock
    ) -> Signals:
        """I_k, H_k and S_k over the window of min(l_max, remaining) positions from a start."""
        assert prediction.top is not None
        assert prediction.entropy is not None
        width = min(self.l_max, prediction.token.shape[-1])
        window = jnp.minimum(remaining, width)
        offset = start - memory.start
        # Over all that was compressed, not just the window: a slice of the top K would make XLA sort.
        previous = numerics.window(memory.ahead, offset, prediction.token.shape[-1])
        influence = numerics.kl_divergence(prediction.top, previous)[:, :width]
        # Further ahead than the last start looked (a gap was jumped over): nothing is known of an influence.
        reached = offset[:, None] + jnp.arange(width, dtype=jnp.int32)[None] < memory.ahead.floor.shape[-1]
        influence = jnp.where(reached & memory.known[:, None], influence, 0.0)
        uncertainty = prediction.entropy[:, :width]

        def scale(x: jax.Array) -> jax.Array:
            return numerics.robust_scale(numerics.smooth(x, window), window)

        scaled_i, scaled_h = jax.vmap(scale)(jnp.stack([influence, uncertainty]))
        score = scaled_i - self.lambda_u * scaled_h
        return Signals(influence, uncertainty, jnp.where(memory.known[:, None], score, 0.0))
