"""Text in, text out: prompts of many lengths, answered in batches or as a stream."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from depcap_jax.decoding.generate import generate, prepare
from depcap_jax.decoding.policy import check_count
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeError, DecodeResult, DiffusionLM, Status
from depcap_jax.decoding.stream import Snapshot, stream
from depcap_jax.text.batching import SHORTEST_PROMPT, at_least, doubling, pad_batch, row_keys
from depcap_jax.text.codec import Codec, Prompt
from depcap_jax.text.infill import Infilled, infill

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclasses.dataclass(frozen=True)
class Reply:
    """What became of one prompt."""

    text: str
    """The visible answer."""
    tokens: tuple[int, ...]
    """Its ids: those before the end-of-text token."""
    commit_steps: tuple[int, ...]
    """The forward pass, from 1, at which each of them was committed."""
    nfe: int
    """Forward passes spent, also on what follows the visible answer."""
    block_sizes: tuple[int, ...]
    """The chosen block lengths."""
    prompt_length: int
    """Tokens of the prompt, chat template included."""
    status: Status
    """OK, or why the answer ends early."""


@dataclasses.dataclass(frozen=True)
class Partial:
    """An answer on its way."""

    pieces: tuple[tuple[str, int], ...]
    """Its text, up to the last committed token, in runs of tokens that were committed together: each with
    the pass it was committed at, and runs of open positions with 0 and an underscore a token."""
    snapshot: Snapshot
    """The ids behind it."""

    @property
    def text(self) -> str:
        """The whole of it, open positions as underscores."""
        return "".join(text for text, _ in self.pieces)


class RepliesError(DecodeError):
    """Some answers did not end well; `replies` holds all of them, the good ones included."""

    def __init__(self, message: str, replies: Sequence[Reply] = ()):
        super().__init__(message)
        self.replies = list(replies)


class TextGenerator:
    """Answers texts with texts.

        model, tokenizer = depcap_jax.load(folder)
        answer = TextGenerator(model, tokenizer, recipe("depcap", cache="dual"))
        answer(["How many legs have three cats?", "Name a prime."])    # two texts, in this order
        answer([[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]])
        answer.run(["Name a prime."])[0].nfe                           # the text and what it took
        answer.infill("Three cats have [gap:2] legs.").text            # gaps filled in place

    Prompts of many lengths share few compilations: they are sorted by length, batched, and padded to one of
    a few widths. A list that needs several batches compiles at most once a width; one that fits into a batch
    is padded to a power of two of rows. No answer depends on this. Another `TextGenerator` for the same
    model and the same lengths compiles nothing anew.

    Args:
      model: a `Transformer`, or anything with the methods of `DiffusionLM`.
      tokenizer: the checkpoint's own, as `load` returns it.
      config: how to decode; the paper's DepCap by default.
      batch_size: prompts decoded together at most.
      buckets: widths that prompts are padded to; doubling from 32 by default. What the context leaves
        beside the answer always is the last one.
      chat: None wraps each text as a user's turn if the tokenizer has a chat template, whatever the
        checkpoint is called; True insists on a template; False gives the model the bare text.
      progress: False shows no bar; None shows one if stderr is a terminal; True always does.
      key: needed for sampling. A prompt draws with `fold_in(key, its index in the list)`: the same list gives
        the same answers whatever the batch size, and a prompt that is repeated gets different ones. For
        other answers to the same list make another `TextGenerator` with another key.

    Raises:
      MissingTokenizerError: if the tokenizer is None: the checkpoint came without one.
      ValueError: if a setting is out of range, or `chat=True` and the tokenizer has no chat template.
      TypeError: if an argument is something else altogether.
    """

    def __init__(
        self,
        model: DiffusionLM,
        tokenizer: PreTrainedTokenizerBase | None,
        config: DecodeConfig | None = None,
        *,
        batch_size: int = 8,
        buckets: Sequence[int] | None = None,
        chat: bool | None = None,
        progress: bool | None = False,
        key: jax.Array | None = None,
    ):
        if not hasattr(model, "config"):
            raise TypeError(f"model must be a model, as load returns it first, got {type(model).__name__}")
        if config is not None and not isinstance(config, DecodeConfig):
            raise TypeError(f"config must be a DecodeConfig, as recipe makes it, got {config!r}")
        check_count("batch_size", batch_size, 1)
        self._model = model
        self._config = DecodeConfig() if config is None else config
        self._codec = Codec(tokenizer, model.config.vocab_size, chat)
        self._batch_size = batch_size
        self._buckets = _prompt_buckets(model.config.max_length, self._config.gen_length, buckets)
        self._progress = progress
        self._key = None if self._config.sampling is None else _sampling_key(key)

    def __call__(self, prompts: Iterable[Prompt]) -> list[str]:
        """The answers' visible texts, in the order of the prompts; [] for an empty list.

        Raises:
          TypeError, ValueError: as `run`.
          RepliesError: if a row did not end well, naming the prompts; its `replies` holds all that was
            decoded. `run` returns the same without raising.
        """
        replies = self.run(prompts)
        complaints = [
            f"prompts {[i for i, reply in enumerate(replies) if reply.status == status]}: {status.message}"
            for status in sorted({reply.status for reply in replies} - {Status.OK})
        ]
        if complaints:
            raise RepliesError("; ".join(complaints), replies)
        return [reply.text for reply in replies]

    def run(self, prompts: Iterable[Prompt]) -> list[Reply]:
        """The answers with what they took, in the order of the prompts, whatever their status.

        Args:
          prompts: texts and conversations. An empty text is answered too: after an empty turn, or, without
            a chat template, from nothing at all.

        Raises:
          TypeError: if it is no list, or a prompt is neither a text nor a conversation.
          ValueError: if a prompt does not fit into the context beside the answer. Nothing is decoded then.
        """
        ids = self._encode(prompts)
        replies: dict[int, Reply] = {}
        disable = None if self._progress is None else not self._progress
        with tqdm(total=len(ids), unit="prompt", disable=disable) as bar:
            for batch, rows, width in self._plan(ids):
                replies.update(zip(batch, self._decode_batch(batch, ids, rows, width), strict=True))
                bar.update(len(batch))
        return [replies[index] for index in range(len(ids))]

    def prepare(self, prompts: Iterable[Prompt]) -> float:
        """Compiles what `run(prompts)` will need and decodes nothing; returns the seconds that it took.

        Raises:
          TypeError, ValueError: as `run`.
        """
        begin = time.perf_counter()
        for rows, width in {(rows, width) for _, rows, width in self._plan(self._encode(prompts))}:
            prepare(self._model, rows, width, config=self._config, key=row_keys(self._key, [0] * rows))
        return time.perf_counter() - begin

    def fits(self, prompt: Prompt) -> bool:
        """Whether the context holds the prompt beside an answer."""
        return len(self._codec.encode_prompt(prompt, "prompt")) <= self._buckets[-1]

    def stream(self, prompt: Prompt) -> Iterator[Partial]:
        """Answers one prompt and tells the answer after every forward pass; the last is as `run` has it.

        Raises:
          TypeError, ValueError: as `run`.
          DecodeError: if it did not end well.
        """
        (ids,) = self._encode([prompt])
        canvas = np.full(at_least(len(ids), self._buckets), self._model.config.pad_token_id, np.int32)
        canvas[: len(ids)] = ids
        keys = row_keys(self._key, [0])
        key = None if keys is None else keys[0]
        ends = self._model.config.eos_token_ids
        for snapshot in stream(self._model, canvas, len(ids), config=self._config, key=key):
            pieces = self._codec.read_partial(snapshot.tokens, snapshot.commit_step, ends)
            yield Partial(tuple(pieces), snapshot)

    def _encode(self, prompts: Iterable[Prompt]) -> list[list[int]]:
        """The prompts' ids, all of which fit into the context."""
        if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
            raise TypeError(f"prompts must be a list; for one prompt write [prompt], got {prompts!r}")
        ids = [self._codec.encode_prompt(prompt, f"prompt {index}") for index, prompt in enumerate(prompts)]
        limit = self._buckets[-1]
        for index, row in enumerate(ids):
            if len(row) > limit:
                raise ValueError(
                    f"prompt {index} has {len(row)} tokens; at most {limit} fit beside an answer of "
                    f"{self._config.gen_length} in the model's context of {self._model.config.max_length}"
                )
        return ids

    def _plan(self, ids: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], int, int]]:
        """The batches: which prompts, on how many rows, padded to which width."""
        # Longest first: what does not fit into memory fails at once, and not after an hour.
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        rows = at_least(min(len(ids), self._batch_size), doubling(1, self._batch_size))
        for first in range(0, len(order), self._batch_size):
            batch = order[first : first + self._batch_size]
            yield batch, rows, at_least(len(ids[batch[0]]), self._buckets)

    def infill(self, template: str | Sequence[str | int], *, prompt: Prompt | None = None) -> Infilled:
        """Fills the gaps of a text, all of them in one decode, and leaves everything else as it is.

        Each gap has a fixed number of tokens; an end-of-text token that the model puts there is left out
        of the text, so a gap may turn out shorter.

        Args:
          template: a text with gaps, `[gap:8]` being one of 8 tokens; or the text's parts, a whole number
            standing for a gap: `["Three cats have", 2, " legs."]`. No special tokens are added to it.
          prompt: a question that the template is the reply to; None for a text that stands alone.

        Raises:
          TypeError, ValueError: if the template has no gap, a gap of no tokens, or does not fit the context.
          DecodeError: if it did not end well.
        """
        return infill(self._model, self._codec, self._config, template, prompt, row_keys(self._key, [0]))

    def _decode_batch(
        self, batch: Sequence[int], ids: Sequence[Sequence[int]], rows: int, width: int
    ) -> list[Reply]:
        """Decodes the prompts `batch`, on a canvas of `rows` rows; copies of the last one fill it up."""
        padded = pad_batch(
            ids,
            batch,
            rows=rows,
            width=width,
            fill=self._model.config.pad_token_id,
            key=self._key,
        )
        result = generate(self._model, padded.prompts, padded.lengths, config=self._config, key=padded.key)
        result = jax.tree.map(np.asarray, result)
        return [self._reply(result, row, len(ids[index])) for row, index in enumerate(batch)]

    def _reply(self, result: DecodeResult, row: int, prompt_length: int) -> Reply:
        visible = int(result.lengths[row])
        tokens = result.tokens[row, :visible].tolist()
        return Reply(
            text=self._codec.decode(tokens),
            tokens=tuple(tokens),
            commit_steps=tuple(result.commit_step[row, :visible].tolist()),
            nfe=int(result.nfe[row]),
            block_sizes=tuple(size for size in result.block_sizes[row].tolist() if size),
            prompt_length=prompt_length,
            status=Status(int(result.status[row])),
        )


def _sampling_key(key: jax.Array | None) -> jax.Array:
    if not isinstance(key, jax.Array):
        raise ValueError(f"sampling needs a key, such as jax.random.key(0), got {key!r}")
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def _prompt_buckets(context: int, gen_length: int, buckets: Sequence[int] | None) -> tuple[int, ...]:
    """The widths that prompts are padded to, ascending; the last is what the answer leaves of the context."""
    limit = context - gen_length
    if limit < 0:
        raise ValueError(f"gen_length is {gen_length}, but the model's context has {context} positions")
    if buckets is None:
        return doubling(SHORTEST_PROMPT, limit)
    for bucket in buckets:
        check_count("buckets", bucket, 1, limit)
    return tuple(sorted({*buckets, limit}))
