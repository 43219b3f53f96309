"""Few shapes for many prompts: the widths they are padded to, and the batches that come of it.

Axis letters: B rows, P prompt positions.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from depcap_jax.decoding.generate import generate, prepare
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeResult, DiffusionLM, Status

SHORTEST_PROMPT = 32
"""The narrowest width: below it a compilation costs more than the padding does."""


class PaddedBatch(NamedTuple):
    """What `generate` takes."""

    prompts: np.ndarray  # [B, P] int32
    lengths: np.ndarray  # [B] int32
    key: jax.Array | None  # [B], for sampling


def pad_batch(
    ids: Sequence[Sequence[int]],
    batch: Sequence[int],
    *,
    rows: int,
    width: int,
    fill: int,
    key: jax.Array | None,
) -> PaddedBatch:
    """The prompts `batch` of `ids` on `rows` rows of `width`; copies of the last one fill it up."""
    padded = [*batch, *[batch[-1]] * (rows - len(batch))]
    prompts = np.full((rows, width), fill, np.int32)
    for row, index in zip(prompts, padded, strict=True):
        row[: len(ids[index])] = ids[index]
    lengths = np.asarray([len(ids[index]) for index in padded], np.int32)
    return PaddedBatch(prompts, lengths, row_keys(key, padded))


def row_keys(key: jax.Array | None, indices: Sequence[int]) -> jax.Array | None:
    """What each row draws with: a function of the prompt's index, whatever its batch is."""
    fold = jax.vmap(jax.random.fold_in, (None, 0))
    return None if key is None else fold(key, np.asarray(indices, np.uint32))


def doubling(first: int, last: int) -> tuple[int, ...]:
    """first, 2 first, 4 first, ... below `last`, and `last` itself."""
    widths = []
    while first < last:
        widths.append(first)
        first *= 2
    return (*widths, last)


def at_least(needed: int, widths: Sequence[int]) -> int:
    """The first of the ascending `widths` that is no less than `needed`."""
    return next(width for width in widths if width >= needed)


@dataclasses.dataclass(frozen=True)
class Decoded:
    """What became of one prompt."""

    index: int
    tokens: tuple[int, ...]
    """The visible ids."""
    commit_steps: tuple[int, ...]
    nfe: int
    block_sizes: tuple[int, ...]
    prompt_length: int
    status: Status
    seconds: float
    """This prompt's equal share of its batch's time of generation, from ids to ids."""
    result: DecodeResult | None


class Batcher:
    """Decodes prompts of ids, many at a time; a prompt's answer does not depend on its batch."""

    def __init__(
        self,
        model: DiffusionLM,
        config: DecodeConfig,
        *,
        batch_size: int = 8,
        buckets: Sequence[int] | None = None,
    ):
        self._model, self._config, self._batch_size = model, config, batch_size
        self.limit = model.config.max_length - config.gen_length
        self._buckets = doubling(SHORTEST_PROMPT, self.limit) if buckets is None else tuple(buckets)

    def check(self, prompts: Sequence[Sequence[int]], name: str = "prompt") -> None:
        """Raises ValueError if a prompt does not fit into the context beside the answer."""
        for index, prompt in enumerate(prompts):
            if len(prompt) > self.limit:
                raise ValueError(
                    f"{name} {index} has {len(prompt)} tokens; at most {self.limit} fit beside an answer of "
                    f"{self._config.gen_length} in the model's context of {self._model.config.max_length}"
                )

    def compile(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        indices: Sequence[int] | None = None,
        trace: bool = False,
    ) -> float:
        """Compiles what these prompts need; the seconds it took."""
        begin = time.perf_counter()
        key = None if self._config.sampling is None else jax.random.key(0)
        for batch_width in {width for _, width in self._plan(prompts, indices)}:
            rows = min(self._batch_size, len(prompts))
            prepare(self._model, rows, batch_width, config=self._config, key=key)
        return time.perf_counter() - begin

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        indices: Sequence[int] | None = None,
        key: jax.Array | None = None,
        trace: bool = False,
    ) -> Iterator[list[Decoded]]:
        """Decodes these prompts, widest first."""
        rows = min(self._batch_size, len(prompts))
        for batch, width in self._plan(prompts, indices):
            padded = pad_batch(prompts, batch, rows=rows, width=width, fill=0, key=key)
            jax.block_until_ready(padded.key)  # drawn before the clock starts
            begin = time.perf_counter()
            result = generate(
                self._model,
                padded.prompts,
                padded.lengths,
                config=self._config,
                key=padded.key,
                trace=trace,
            )
            result = jax.tree.map(np.asarray, result)
            seconds = (time.perf_counter() - begin) / len(batch)
            yield [
                _read_row(result, row, index, len(prompts[index]), seconds, trace)
                for row, index in enumerate(batch)
            ]

    def _plan(
        self, prompts: Sequence[Sequence[int]], indices: Sequence[int] | None
    ) -> Iterator[tuple[list[int], int]]:
        chosen = range(len(prompts)) if indices is None else indices
        widths = {index: at_least(len(prompts[index]), self._buckets) for index in chosen}
        for width in sorted(set(widths.values()), reverse=True):
            alike = [index for index in chosen if widths[index] == width]
            for first in range(0, len(alike), self._batch_size):
                yield alike[first : first + self._batch_size], width


def _read_row(
    result: DecodeResult, row: int, index: int, prompt_length: int, seconds: float, trace: bool
) -> Decoded:
    visible = int(result.lengths[row])
    return Decoded(
        index=index,
        tokens=tuple(result.tokens[row, :visible].tolist()),
        commit_steps=tuple(result.commit_step[row, :visible].tolist()),
        nfe=int(result.nfe[row]),
        block_sizes=tuple(size for size in result.block_sizes[row].tolist() if size),
        prompt_length=prompt_length,
        status=Status(int(result.status[row])),
        seconds=seconds,
        result=jax.tree.map(lambda leaf: leaf[row : row + 1], result) if trace else None,
    )
