"""What decoding needs of a model."""

from __future__ import annotations

from typing import Any, Protocol

import jax


class ModelInfo(Protocol):
    """The facts about a model that decoding reads."""

    @property
    def vocab_size(self) -> int:
        """Ids below this are tokens."""
        ...

    @property
    def mask_token_id(self) -> int:
        """What stands at open positions; it is never committed."""
        ...

    @property
    def pad_token_id(self) -> int:
        """What follows the end of an answer."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Any of these ends an answer."""
        ...

    @property
    def predicts_next(self) -> bool:
        """True if a position is predicted by the hidden state before it (Dream)."""
        ...

    @property
    def max_length(self) -> int:
        """The longest canvas: prompt and answer together."""
        ...


class DiffusionLM(Protocol):
    """A masked-diffusion language model, as a pytree."""

    @property
    def config(self) -> ModelInfo:
        """Its ids and sizes."""
        ...

    def hidden(
        self,
        input_ids: jax.Array,
        *,
        lengths: jax.Array | None = None,
        start: jax.Array | None = None,
        cache: Any = None,
        write: jax.Array | None = None,
        rows: jax.Array | None = None,
    ) -> tuple[jax.Array, Any]:
        """Hidden states [B, Q, D] of the canvas positions [start, start + Q), and the updated cache."""
        ...

    def on_canvas(self, length: int) -> DiffusionLM:
        """The same model, with what all passes over a canvas of `length` share computed; or just itself."""
        ...

    def source(self, position: jax.Array) -> jax.Array:
        """The positions whose hidden states predict the canvas positions [...]."""
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Float32 logits [..., V] of hidden states [..., D]."""
        ...

    def token_logits(self, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
        """The logits [B, Q, C] of hidden states [B, Q, D] at the ids `tokens` [B, C] alone."""
        ...

    def init_cache(self, batch: int, length: int) -> Any:
        """An empty cache: a pytree whose leaves all begin with the batch axis."""
        ...


class AttentiveLM(DiffusionLM, Protocol):
    """A model that also tells what its queries look at, for policies that read attention."""

    def hidden_and_attention(
        self, input_ids: jax.Array, watched: jax.Array, layers: int, **others: Any
    ) -> tuple[jax.Array, Any, jax.Array]:
        """What `hidden` returns, and the attention weights float32 [B, W, T] of some queries.

        They are the mean over the heads and the last `layers` layers, of the queries `watched` [B, W], which
        are indices into `input_ids`. Without a cache, T = Q. `others` are the keywords of `hidden`.
        """
        ...


class SparseLM(DiffusionLM, Protocol):
    """A model that can prune its cache, for `SparseCache`."""

    def init_sparse_cache(self, batch: int, length: int, *, window: int, keep: float) -> Any:
        """As `init_cache`, for a cache that keeps a share of what is outside of `window` positions."""
        ...

    def with_window(self, cache: Any, begin: jax.Array, end: jax.Array, *, prunes: bool) -> Any:
        """That cache for windows [begin, end) [B]; and for full passes, which prune it, or for others."""
        ...
