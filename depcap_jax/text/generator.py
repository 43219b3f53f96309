"""Text in, text out: prompts of many lengths, answered in batches or as a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
from tqdm import tqdm

from depcap_jax.decoding.generate import typed_key
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeError, Status
from depcap_jax.decoding.stream import Snapshot, stream
from depcap_jax.text.batching import Batcher, Decoded, row_keys
from depcap_jax.text.codec import Codec, Prompt
from depcap_jax.text.infill import Infilling, infill
from depcap_jax.text.spelling import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply(Decoded):
    """What became of one prompt: ids and what they took, as `Decoded` has them, and the text."""

    text: str
    """The visible answer."""


@dataclasses.dataclass(frozen=True)
class Partial:
    """An answer on its way."""

    pieces: tuple[tuple[str, int], ...]
    """Its text, up to the last committed token, in runs of tokens that were committed together: each with
    the pass it was committed at, and runs of open positions with 0 and an underscore per token."""
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
        answer = TextGenerator(model, tokenizer, recipe("depcap", cache="dual-margin"))
        answer(["How many legs have three cats?", "Name a prime."])    # two texts, in this order
        answer([[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]])
        answer.run(["Name a prime."])[0].nfe                           # the text and what it took
        answer.infill("Three cats have [gap:2] legs.").text            # gaps filled in place

    Prompts of many lengths share few compiled programs: see `Batcher`. Another `TextGenerator` for the same
    model and the same lengths compiles nothing anew.

    A decoder that samples needs a key with every call. The same key gives the same answers, whatever the
    batch size, and another key gives others. Each prompt of a list draws with `fold_in(key, its index)`, so
    a prompt that is repeated gets different answers; a single one counts as a list's first.

    Args:
      model: a `Transformer`, or anything with the methods of `DiffusionLM`.
      tokenizer: the checkpoint's own, as `load` returns it.
      config: how to decode; the paper's DepCap by default.
      batch_size: prompts decoded together at most.
      buckets: widths that prompts are padded to; doubling from 32 by default. What the context leaves
        beside the answer always is the last one.
      chat: None wraps each text as a user's turn if the tokenizer has a chat template, whatever the
        checkpoint is called; True insists on a template; False gives the model the bare text.
      special_tokens: whether special tokens that a prompt or a template with gaps spells out, such as
        `<|endoftext|>`, are these tokens; by default they are text like any other: see `Codec`.
      progress: False shows no bar; None shows one if stderr is a terminal; True always does.

    Raises:
      MissingTokenizerError: if the tokenizer is None: the checkpoint came without one.
      ValueError: if a setting is out of range, or `chat=True` and the tokenizer has no chat template.
      TypeError: if an argument is something else altogether.
    """

    def __init__(
        self,
        model: DiffusionLM,
        tokenizer: Tokenizer | None,
        config: DecodeConfig | None = None,
        *,
        batch_size: int = 8,
        buckets: Sequence[int] | None = None,
        chat: bool | None = None,
        special_tokens: bool = False,
        progress: bool | None = False,
    ):
        if not hasattr(model, "config"):
            raise TypeError(f"model must be a model, as load returns it first, got {type(model).__name__}")
        if config is not None and not isinstance(config, DecodeConfig):
            raise TypeError(f"config must be a DecodeConfig, as recipe makes it, got {config!r}")
        self._model = model
        self._config = DecodeConfig() if config is None else config
        self._codec = Codec(tokenizer, model.config.vocab_size, chat, special_tokens=special_tokens)
        self._batcher = Batcher(model, self._config, batch_size=batch_size, buckets=buckets)
        self._progress = progress

    def __call__(self, prompts: Iterable[Prompt], *, key: jax.Array | None = None) -> list[str]:
        """The answers' visible texts, in the order of the prompts; [] for an empty list.

        Raises:
          TypeError, ValueError: as `run`.
          RepliesError: if a row did not end well, naming the prompts; its `replies` holds all that was
            decoded. `run` returns the same without raising.
        """
        replies = self.run(prompts, key=key)
        complaints = [
            f"prompts {[i for i, reply in enumerate(replies) if reply.status == status]}: {status.message}"
            for status in sorted({reply.status for reply in replies} - {Status.OK})
        ]
        if complaints:
            raise RepliesError("; ".join(complaints), replies)
        return [reply.text for reply in replies]

    def run(
        self, prompts: Iterable[Prompt], *, key: jax.Array | None = None, trace: bool = False
    ) -> list[Reply]:
        """The answers with what they took, in the order of the prompts, whatever their status.

        Args:
          prompts: texts and conversations. An empty text is answered too: after an empty turn, or, without
            a chat template, from nothing at all.
          key: for sampling.
          trace: also record what every pass saw; tokens and counts stay the same.

        Raises:
          TypeError: if it is no list, or a prompt is neither a text nor a conversation.
          ValueError: if a prompt does not fit into the context beside the answer, or sampling has no key.
            Nothing is decoded then.
        """
        ids = self._encode(prompts)
        replies: dict[int, Reply] = {}
        disable = None if self._progress is None else not self._progress
        with tqdm(total=len(ids), unit="prompt", disable=disable) as bar:
            for batch in self._batcher.run(ids, key=key, trace=trace):
                for decoded in batch:
                    text = self._codec.decode(decoded.tokens)
                    replies[decoded.index] = Reply(**vars(decoded), text=text)
                bar.update(len(batch))
        return [replies[index] for index in range(len(ids))]

    def stream(self, prompt: Prompt, *, key: jax.Array | None = None) -> Iterator[Partial]:
        """Answers one prompt and tells the answer after every forward pass; the last is as `run` has it.

        Raises:
          TypeError, ValueError: as `run`.
          DecodeError: while it is read, if it did not end well.
        """
        (ids,) = self._encode([prompt])
        key = row_keys(typed_key(key, self._config), [0])
        snapshots = stream(self._model, self._batcher.pad(ids), len(ids), config=self._config, key=key)
        read, ends = self._codec.read_partial, self._model.config.eos_token_ids
        return (Partial(tuple(read(now.tokens, now.commit_step, ends)), now) for now in snapshots)

    def infill(
        self,
        template: str | Sequence[str | int],
        *,
        prompt: Prompt | None = None,
        key: jax.Array | None = None,
    ) -> Infilling:
        """Fills the gaps of a text, all of them in one decode, and leaves everything else as it is.

        Each gap has a fixed number of tokens; an end-of-text token that the model puts there is left out
        of the text, so a gap may turn out shorter.

        Args:
          template: a text with gaps, `[gap:8]` being one of 8 tokens; or the text's parts, an integer
            standing for a gap: `["Three cats have", 2, " legs."]`. No special tokens are added to it.
          prompt: a question that the template is the reply to; None for a text that stands alone.
          key: for sampling.

        Raises:
          TypeError: if the template or the prompt is something else altogether.
          ValueError: if the template has no gap, a gap of no tokens, or does not fit the context; or
            sampling has no key.
          DecodeError: if it did not end well.
        """
        key = row_keys(typed_key(key, self._config), [0])
        return infill(self._model, self._codec, self._config, template, prompt, key)

    def prepare(self, prompts: Iterable[Prompt]) -> float:
        """Compiles what `run(prompts)` will need and decodes nothing; returns the seconds that it took.

        Raises:
          TypeError, ValueError: as `run`.
        """
        return self._batcher.compile(self._encode(prompts))

    def fits(self, prompt: Prompt) -> bool:
        """Whether the context holds the prompt beside an answer."""
        return len(self.encode(prompt)) <= self._batcher.limit

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids that the model gets for a prompt, chat template included.

        Raises:
          TypeError: if it is neither a text nor a conversation.
          ValueError: if it is a conversation and there is no chat template.
        """
        return self._codec.encode_prompt(prompt, "prompt")

    def _encode(self, prompts: Iterable[Prompt]) -> list[list[int]]:
        """The prompts' ids, all of which fit into the context."""
        if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
            raise TypeError(f"prompts must be a list; for one prompt write [prompt], got {prompts!r}")
        ids = [self._codec.encode_prompt(prompt, f"prompt {index}") for index, prompt in enumerate(prompts)]
        self._batcher.check(ids)
        return ids
