"""Prompts of many lengths, decoded in few batches of few shapes."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from depcap_jax.decoding.generate import generate, prepare, typed_key
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeResult, Status

Prompts = Sequence[Sequence[int]]
"""The ids of each."""
SHORTEST_PROMPT = 32
"""The narrowest width: below it a compilation costs more than the padding does."""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """What became of one prompt, in ids; equal to another if the same passes committed the same tokens."""

    index: int = dataclasses.field(compare=False)
    """Of the prompt in the list."""
    tokens: tuple[int, ...]
    """The visible ids: those before the end-of-text token."""
    commit_steps: tuple[int, ...]
    """The forward pass, from 1, at which each of them was committed."""
    nfe: int
    """Forward passes spent, also on what follows the visible ids."""
    block_sizes: tuple[int, ...]
    """The chosen block lengths."""
    prompt_length: int
    """Tokens of the prompt, chat template included."""
    status: Status
    """OK, or why the answer ends early."""
    seconds: float = dataclasses.field(compare=False)
    """An equal share of the time that the prompt's batch took from ids to ids: neither compiling nor
    tokenising is in it. Whatever is said about speed, anywhere, is said with these seconds."""
    result: DecodeResult | None = dataclasses.field(default=None, compare=False, repr=False)
    """With `trace=True`, its row alone (a batch of 1, in NumPy) with its trace, for `plots` and `viewer`."""


class Batcher:
    """Decodes prompts of ids, many at a time.

    Prompts are sorted by length, the longest first, so that what does not fit into memory fails at once, and
    cut into batches. All batches of a list have the same number of rows: `batch_size`, or for a list that
    fits into one batch the next power of two. A batch is as wide as the first bucket that holds its longest
    prompt. So a list compiles at most one program per bucket, other lists share these programs, and at most
    the last batch has rows to spare. No answer depends on this: not on the batch, nor on its width, nor on
    which other prompts are decoded.

    Args:
      model: a `Transformer`, or anything with the methods of `DiffusionLM`.
      config: how to decode.
      batch_size: prompts decoded together at most.
      buckets: widths that prompts are padded to; doubling from 32 by default. What the context leaves
        beside the answer always is the last one.

    Raises:
      ValueError: if a setting is out of range, or the answer alone exceeds the model's context.
    """

    limit: int
    """Tokens of the longest prompt that fits beside the answer."""

    def __init__(
        self,
        model: DiffusionLM,
        config: DecodeConfig,
        *,
        batch_size: int = 8,
        buckets: Sequence[int] | None = None,
    ):
        check_integer("batch_size", batch_size, 1)
        context = model.config.max_length
        if config.gen_length > context:
            raise ValueError(
                f"gen_length is {config.gen_length}, but the model's context has {context} positions"
            )
        self.limit = context - config.gen_length
        for bucket in buckets or ():
            check_integer("buckets", bucket, 1, self.limit)
        self._model = model
        self._config = config
        self._batch_size = batch_size
        widths = doubling(SHORTEST_PROMPT, self.limit) if buckets is None else buckets
        self._widths = sorted({*widths, self.limit})
        self._compiled: set[tuple[object, ...]] = set()

    def check(self, prompts: Prompts, name: str = "prompt") -> None:
        """Raises ValueError, calling it `name`, if a prompt does not fit into the context with the answer."""
        for index, prompt in enumerate(prompts):
            if len(prompt) > self.limit:
                raise ValueError(
                    f"{name} {index} has {len(prompt)} tokens; at most {self.limit} fit beside an answer of "
                    f"{self._config.gen_length} in the model's context of {self._model.config.max_length}"
                )

    def compile(
        self, prompts: Prompts, *, indices: Sequence[int] | None = None, trace: bool = False
    ) -> float:
        """Compiles what `run` with the same arguments will need, decodes nothing; the seconds it took.

        Raises:
          ValueError: if a prompt does not fit.
        """
        self.check(prompts)
        begin = time.perf_counter()
        key = None if self._config.sampling is None else jax.random.key(0)
        for _, rows, width in self._batches(prompts, indices):
            self._prepare(rows, width, row_keys(key, [0] * rows), trace)
        return time.perf_counter() - begin

    def run(
        self,
        prompts: Prompts,
        *,
        indices: Sequence[int] | None = None,
        key: jax.Array | None = None,
        trace: bool = False,
    ) -> Iterator[list[Decoded]]:
        """Decodes the prompts, batch by batch; within and between batches the longest come first.

        Args:
          prompts: their ids.
          indices: which of them to decode, as a run that was stopped and goes on does; all by default.
          key: for sampling. A prompt draws with `fold_in(key, its index in prompts)`.
          trace: also record what every pass saw.

        Raises:
          ValueError: if a prompt does not fit, or sampling has no key; nothing is decoded then.
        """
        self.check(prompts)
        key = typed_key(key, self._config)
        batches = self._batches(prompts, indices)
        return (self._decode(prompts, *batch, key=key, trace=trace) for batch in batches)

    def pad(self, prompt: Sequence[int], width: int | None = None) -> np.ndarray:
        """The prompt [P] int32, padded to a width; by default to the first bucket that holds it."""
        width = at_least(len(prompt), self._widths) if width is None else width
        padded = np.full(width, self._model.config.pad_token_id, np.int32)
        padded[: len(prompt)] = prompt
        return padded

    def _batches(self, prompts: Prompts, indices: Sequence[int] | None) -> list[tuple[list[int], int, int]]:
        """Each batch: the indices of its prompts, its rows and its width."""
        chosen = range(len(prompts)) if indices is None else indices
        order = sorted(chosen, key=lambda index: -len(prompts[index]))
        # By the whole list and not by what is chosen of it: a run that goes on uses the same programs.
        rows = at_least(min(len(prompts), self._batch_size), doubling(1, self._batch_size))
        batches = [order[first : first + rows] for first in range(0, len(order), rows)]
        return [(batch, rows, at_least(len(prompts[batch[0]]), self._widths)) for batch in batches]

    def _decode(
        self, prompts: Prompts, batch: list[int], rows: int, width: int, key: jax.Array | None, trace: bool
    ) -> list[Decoded]:
        """Decodes the prompts `batch`, on a canvas of `rows` rows; copies of the last one fill it up."""
        filled = [*batch, *[batch[-1]] * (rows - len(batch))]
        ids = np.stack([self.pad(prompts[index], width) for index in filled])
        lengths = np.asarray([len(prompts[index]) for index in filled], np.int32)
        keys = row_keys(key, filled)
        self._prepare(rows, width, keys, trace)
        jax.block_until_ready(keys)  # drawn before the clock starts
        begin = time.perf_counter()
        result = generate(self._model, ids, lengths, config=self._config, key=keys, trace=trace)
        result = jax.tree.map(np.asarray, result)
        seconds = (time.perf_counter() - begin) / len(batch)
        return [_read(result, row, index, len(prompts[index]), seconds) for row, index in enumerate(batch)]

    def _prepare(self, rows: int, width: int, keys: jax.Array | None, trace: bool) -> None:
        program = (rows, width, None if keys is None else keys.dtype, trace)
        if program not in self._compiled:
            prepare(self._model, rows, width, config=self._config, key=keys, trace=trace)
            self._compiled.add(program)


def answer_length(context: int) -> int:
    """Positions of an answer by default: 256 as in the paper, but at most half of the context."""
    return min(256, context // 2)


def row_keys(key: jax.Array | None, indices: Sequence[int]) -> jax.Array | None:
    """[B] what the prompts with these indices draw with, whatever their batch is; None without a key."""
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


def _read(result: DecodeResult, row: int, index: int, prompt_length: int, seconds: float) -> Decoded:
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
        result=None if result.trace is None else jax.tree.map(lambda leaf: leaf[row : row + 1], result),
    )
