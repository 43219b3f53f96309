"""Decodes the prompts of a run in batches whose time is that of decoding alone.

Axis letters: B rows, P prompt positions.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from depcap_jax.decoding.generate import generate, prepare
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeResult, Status
from depcap_jax.text.batching import SHORTEST_PROMPT, at_least, doubling, pad_batch


@dataclasses.dataclass(frozen=True)
class Decoded:
    """What became of one prompt."""

    index: int
    tokens: tuple[int, ...]
    """The visible ids."""
    nfe: int
    block_sizes: tuple[int, ...]
    status: Status
    seconds: float
    """This prompt's share of its batch's time."""


class BatchDecoder:
    """Decodes prompts of ids, many at a time.

    A prompt's answer depends neither on its batch nor, with sampling, on which prompts were decoded before:
    it draws with `fold_in(key(seed), its index)`.

    Args:
      model: a `Transformer`, or anything with the methods of `DiffusionLM`.
      config: how to decode.
      prompts: the ids of all prompts of the run, whether they will be decoded now or not.
      batch_size: prompts decoded together at most.
      seed: for sampling.

    Raises:
      ValueError: if a prompt does not fit into the context beside the answer.
    """

    def __init__(
        self,
        model: DiffusionLM,
        config: DecodeConfig,
        prompts: Sequence[Sequence[int]],
        *,
        batch_size: int,
        seed: int = 0,
    ):
        limit = model.config.max_length - config.gen_length
        for index, prompt in enumerate(prompts):
            if len(prompt) > limit:
                raise ValueError(
                    f"problem {index} has a prompt of {len(prompt)} tokens; at most {max(limit, 0)} fit "
                    f"beside an answer of {config.gen_length} in the context of {model.config.max_length}"
                )
        self._model = model
        self._config = config
        self._prompts = prompts
        self._rows = min(batch_size, len(prompts))
        widths = doubling(SHORTEST_PROMPT, limit)
        self._widths = [at_least(len(prompt), widths) for prompt in prompts]
        self._key = None if config.sampling is None else jax.random.key(seed)

    def compile(self, indices: Sequence[int]) -> float:
        """Compiles what these prompts need; the seconds it took."""
        begin = time.perf_counter()
        for width in sorted({self._widths[index] for index in indices}):
            prepare(self._model, self._rows, width, config=self._config, key=self._key)
        return time.perf_counter() - begin

    def run(self, indices: Sequence[int]) -> Iterator[list[Decoded]]:
        """Decodes these prompts, widest first: what does not fit into memory fails at once."""
        for width in sorted({self._widths[index] for index in indices}, reverse=True):
            alike = [index for index in indices if self._widths[index] == width]
            for first in range(0, len(alike), self._rows):
                yield self._run_batch(alike[first : first + self._rows], width)

    def _run_batch(self, batch: Sequence[int], width: int) -> list[Decoded]:
        padded = pad_batch(self._prompts, batch, rows=self._rows, width=width, fill=0, key=self._key)
        jax.block_until_ready(padded.key)  # drawn before the clock starts
        begin = time.perf_counter()
        result = generate(self._model, padded.prompts, padded.lengths, config=self._config, key=padded.key)
        result = jax.tree.map(np.asarray, result)
        seconds = (time.perf_counter() - begin) / len(batch)
        return [_read_row(result, row, index, seconds) for row, index in enumerate(batch)]


def _read_row(result: DecodeResult, row: int, index: int, seconds: float) -> Decoded:
    return Decoded(
        index=index,
        tokens=tuple(result.tokens[row, : int(result.lengths[row])].tolist()),
        nfe=int(result.nfe[row]),
        block_sizes=tuple(size for size in result.block_sizes[row].tolist() if size),
        status=Status(int(result.status[row])),
        seconds=seconds,
    )
