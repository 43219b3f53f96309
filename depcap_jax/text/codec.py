"""Between text and ids: chat templates, templates with gaps, and what a reader sees of an answer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from depcap_jax.checkpoints.tokenizer import require_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompt = str | Sequence[Mapping[str, str]]
"""A text, or a conversation: [{"role": "user", "content": "..."}, ...]."""

_GAP = re.compile(r"\[gap:(\d+)\]")


class Codec:
    """A checkpoint's tokenizer, with the decision whether a text is a user's turn.

    Args:
      tokenizer: one of `transformers`.
      vocab_size: ids from here on are not the model's.
      chat: None uses the chat template if there is one, True insists on it, False never does.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int, chat: bool | None = None):
        self._tokenizer: Any = require_tokenizer(tokenizer)
        if not callable(self._tokenizer):
            raise TypeError(f"tokenizer must be one of transformers, got {type(tokenizer).__name__}")
        if chat not in (None, True, False):
            raise TypeError(f"chat must be True, False or None, got {chat!r}")
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise ValueError("chat is True, but the tokenizer has no chat template; chat=None does without")
        self._vocab_size = vocab_size
        self._chat = has_template and chat is not False
        self._why_not = "chat is False" if has_template else "the tokenizer has none"

    def encode_prompt(self, prompt: Prompt, name: str) -> list[int]:
        """The ids of a text or a conversation; `name` is what complaints call it."""
        if isinstance(prompt, str):
            if not self._chat:
                return self._ids(name, prompt)
            prompt = [{"role": "user", "content": prompt}]
        _check_messages(prompt, name)
        if not self._chat:
            raise ValueError(f"{name} is a conversation and needs a chat template, but {self._why_not}")
        text = self._tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
        return self._ids(name, text, add_special_tokens=False)  # the template has written them

    def encode_part(self, text: str) -> list[int]:
        """The ids of a piece of a text, without special tokens around it."""
        return self._ids("the template", text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def read_fillings(
        self, parts: Sequence[str | int], pieces: Sequence[Sequence[int]], dropped: Sequence[int]
    ) -> list[str]:
        """The text of each gap: as it reads behind what stands before it, without the ids `dropped`.

        Args:
          parts: a template, as `parse_template` gives it.
          pieces: the ids of each part, gaps filled.
          dropped: ids that a gap may hold but that are not shown.
        """
        fillings: list[str] = []
        before: list[int] = []
        written = ""
        for part, piece in zip(parts, pieces, strict=True):
            if isinstance(part, str):
                written += part
                before += piece
                continue
            shown = [token for token in piece if token not in dropped]
            # Decoded alone a word may lose the space before it, so it is read off in its place.
            context, both = self.decode(before), self.decode([*before, *shown])
            filling = both[len(context) :] if both.startswith(context) else self.decode(shown)
            # A tokenizer that drops a space and writes it back itself must not write a second one.
            if written[-1:].isspace() and not context[-1:].isspace():
                filling = filling.lstrip(" ")
            fillings.append(filling)
            written += filling
            before += shown
        return fillings

    def read_partial(
        self, tokens: np.ndarray, steps: np.ndarray, ends: Sequence[int]
    ) -> list[tuple[str, int]]:
        """A half-decoded answer as text, cut where the pass changes that committed it.

        Args:
          tokens: [G] its ids.
          steps: [G] the pass at which each was committed; 0 where it is open: an underscore a token.
          ends: ids that end an answer; it is shown up to the first of them, or to its last committed token.
        """
        ended = np.isin(tokens, ends) & (steps > 0)
        steps = steps[: np.argmax(ended) if ended.any() else None]
        steps = steps[: np.max(np.flatnonzero(steps), initial=-1) + 1]
        pieces: list[tuple[str, int]] = []
        committed: list[int] = []
        written = ""
        for step, run in itertools.groupby(range(len(steps)), key=lambda index: int(steps[index])):
            positions = list(run)
            if step == 0:
                pieces.append(("_" * len(positions), 0))
                continue
            # A token alone may lose the space before it, so a run is read off behind what precedes it.
            committed += tokens[positions].tolist()
            text = self.decode(committed)
            pieces.append((text[len(written) :], step))
            written = text
        return pieces

    def _ids(self, name: str, text: str, **settings: Any) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes that the terminal could not decode arrive as lone surrogates
            raise ValueError(f"{name} is not a text in UTF-8: {text!r}") from None
        ids = list(self._tokenizer(text, **settings)["input_ids"])
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise ValueError(
                    f"{name} holds the token id {token}; the model has ids in [0, {self._vocab_size}). "
                    "Do this model and this tokenizer belong together?"
                )
        return ids


def parse_template(template: str | Sequence[str | int]) -> list[str | int]:
    """A template's parts: texts, and gaps as their number of tokens.

    Raises:
      TypeError: if it is neither a text nor a list of texts and whole numbers.
      ValueError: if it has no gap, or a gap of no tokens.
    """
    if isinstance(template, str):
        pieces = _GAP.split(template)  # texts and numbers in turn
        parts = [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
    elif isinstance(template, Sequence) and not isinstance(template, bytes):
        parts = list(template)
    else:
        raise TypeError(f"a template is a text or a list of texts and gap lengths, got {template!r}")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int)):
            raise TypeError(f"a template's parts are texts and whole numbers, got {part!r}")
        if isinstance(part, int) and part < 1:
            raise ValueError(f"a gap has at least 1 token, got {part}")
    if not any(isinstance(part, int) for part in parts):
        raise ValueError(f"the template has no gap; write [gap:8] for one of 8 tokens, got {template!r}")
    return parts


def _check_messages(messages: Any, name: str) -> None:
    if isinstance(messages, Mapping):
        raise TypeError(f"{name} is a single message; a conversation is a list of them, [message]")
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise TypeError(f"{name} must be a text or a list of messages, got {messages!r}")
    if not messages:
        raise ValueError(f"{name} is a conversation without a message")
    for message in messages:
        fields = (
            [message.get(field) for field in ("role", "content")] if isinstance(message, Mapping) else [None]
        )
        if not all(isinstance(field, str) for field in fields):
            raise TypeError(f'{name}: a message is {{"role": text, "content": text}}, got {message!r}')
