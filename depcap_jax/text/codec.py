"""Between text and ids: with a chat template or without, and what a reader sees of an answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from depcap_jax.text.spelling import Tokenizer, spell_runs
from depcap_jax.text.templates import encode_chat

Prompt = str | Sequence[Mapping[str, str]]
"""A text, or a conversation: [{"role": "user", "content": "..."}, ...]."""


class MissingTokenizerError(ValueError):
    """Text was given to, or wanted from, a model whose checkpoint has no tokenizer."""


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer itself; raises `MissingTokenizerError`, saying what to do, if it is None."""
    if tokenizer is None:
        raise MissingTokenizerError(
            "this checkpoint has no tokenizer: text needs one. Put tokenizer.json (LLaDA) or vocab.json and "
            "merges.txt (Dream), with tokenizer_config.json, beside the weights and load again, "
            "or pass token ids instead of text"
        )
    return tokenizer


class Codec:
    """A checkpoint's tokenizer, with the decision whether a text is a user's turn.

    Args:
      tokenizer: one of `transformers`.
      vocab_size: ids from here on are not the model's.
      chat: None uses the chat template if there is one, True insists on it, False never does.
      special_tokens: whether `<|endoftext|>` and its like, where a person wrote them, are the tokens of that
        name. By default they are text like any other, and no text can end a turn, begin one or be a mask.

    With a chat template, the special tokens that the template itself writes are always tokens; see
    `templates.encode_chat` for those in a message.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        chat: bool | None = None,
        *,
        special_tokens: bool = False,
    ):
        self._tokenizer: Any = require_tokenizer(tokenizer)
        if not callable(self._tokenizer):
            raise TypeError(f"tokenizer must be one of transformers, got {type(tokenizer).__name__}")
        if chat not in (None, True, False):
            raise TypeError(f"chat must be True, False or None, got {chat!r}")
        if special_tokens not in (True, False):
            raise TypeError(f"special_tokens must be True or False, got {special_tokens!r}")
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise ValueError("chat is True, but the tokenizer has no chat template; chat=None does without")
        self._vocab_size = vocab_size
        self._chat = has_template and chat is not False
        self._plain = not special_tokens
        self._why_not = "chat is False" if has_template else "the tokenizer has none"

    def encode_prompt(self, prompt: Prompt, name: str) -> list[int]:
        """The ids of a text or a conversation; `name` is what complaints call it."""
        if isinstance(prompt, str):
            if not self._chat:
                return self._ids(prompt, name)
            prompt = [{"role": "user", "content": prompt}]
        _check_messages(prompt, name)
        if not self._chat:
            raise ValueError(f"{name} is a conversation and needs a chat template, but {self._why_not}")
        return self._check(encode_chat(self._tokenizer, prompt, special_tokens=not self._plain), name)

    def encode_part(self, text: str) -> list[int]:
        """The ids of a piece of a text, with no special token added to it."""
        return self._ids(text, "the template", add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens left out."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def read_partial(
        self, tokens: np.ndarray, steps: np.ndarray, ends: Sequence[int]
    ) -> list[tuple[str, int]]:
        """A half-decoded answer as text, cut where the pass changes that committed it.

        Once nothing is open before the end, the pieces put together are `decode` of the visible ids.

        Args:
          tokens: [G] its ids.
          steps: [G] the pass at which each was committed; 0 where it is open: an underscore per token.
          ends: ids that end an answer; it is shown up to the first of them, or to its last committed token.
        """
        ended = np.isin(tokens, ends) & (steps > 0)
        steps = steps[: np.argmax(ended) if ended.any() else None]
        steps = steps[: np.max(np.flatnonzero(steps), initial=-1) + 1]
        pairs = zip(steps.tolist(), tokens.tolist(), strict=False)  # what was cut off stays out
        grouped = itertools.groupby(pairs, key=lambda pair: pair[0])
        runs = [(step, [token for _, token in group]) for step, group in grouped]
        texts = spell_runs([ids if step else None for step, ids in runs], self.decode)
        return [
            (text if step else "_" * len(ids), step) for (step, ids), text in zip(runs, texts, strict=True)
        ]

    def _ids(self, text: str, name: str, **settings: Any) -> list[int]:
        _check_text(text, name)
        encoded = self._tokenizer(text, split_special_tokens=self._plain, **settings)
        return self._check(list(encoded["input_ids"]), name)

    def _check(self, ids: list[int], name: str) -> list[int]:
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise ValueError(
                    f"{name} holds the token id {token}; the model has ids in [0, {self._vocab_size}). "
                    "Do this model and this tokenizer belong together?"
                )
        return ids


def _check_text(text: str, name: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that the terminal could not decode arrive as lone surrogates
        raise ValueError(f"{name} is not a text in UTF-8: {text!r}") from None


def _check_messages(messages: Any, name: str) -> None:
    if isinstance(messages, Mapping):
        raise TypeError(f"{name} is a single message; a conversation is a list of them, [message]")
    if not isinstance(messages, Sequence) or isinstance(messages, bytes):
        raise TypeError(f"{name} must be a text or a list of messages, got {messages!r}")
    if not messages:
        raise ValueError(f"{name} is a conversation without a message")
    for message in messages:
        fields = [message.get("role"), message.get("content")] if isinstance(message, Mapping) else [None]
        if not all(isinstance(field, str) for field in fields):
            raise TypeError(f'{name}: a message is {{"role": text, "content": text}}, got {message!r}')
        for field in fields:
            _check_text(str(field), name)
