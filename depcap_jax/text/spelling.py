"""How ids read as text, token by token, also while some of them are missing.

What a token reads as depends on its neighbours. A tokenizer may write or drop spaces between words, and in a
byte-level vocabulary, such as LLaDA's and Dream's, the bytes of one character may be spread over several
tokens, which a diffusion model commits in any order. So a text is read as a whole first and cut afterwards.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Tokenizer = Any  # transformers takes seconds to import

Decode = Callable[[list[int]], str]
"""A tokenizer's text of some ids."""

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer writes for bytes that are no character


def spell_runs(runs: Iterable[Sequence[int] | None], decode: Decode) -> list[str]:
    """The text of each run of tokens, as it reads behind those before it.

    Without a gap the pieces put together are exactly `decode` of all tokens. A character whose bytes are
    spread over several runs stands in the piece of the last of them. No character reaches over a gap: bytes
    that miss their neighbours read as U+FFFD until these are there.

    Args:
      runs: the ids of each run; None for a gap, where tokens are still missing. A gap's piece is "".
      decode: how the tokenizer reads ids.
    """
    pieces: list[str] = []
    before: list[int] = []
    for is_gap, group in itertools.groupby(runs, key=lambda run: run is None):
        stretch = [run or () for run in group]
        pieces += [""] * len(stretch) if is_gap else _cut(stretch, _complete(before, decode), decode)
        before += itertools.chain(*stretch)
    return pieces


def spell(tokens: Sequence[int] | np.ndarray, tokenizer: Tokenizer | None) -> list[str]:
    """The text of each token as it reads behind those before it, spaces included; "" for -1, a missing one.

    If none is missing, the pieces put together are the tokenizer's own text, special tokens included.
    Without a tokenizer a token is its number.
    """
    ids = [int(token) for token in tokens]
    if tokenizer is None:
        return [token_text(token, None) for token in ids]
    return spell_runs([None if token < 0 else [token] for token in ids], _with_special_tokens(tokenizer))


def token_text(token: int, tokenizer: Tokenizer | None) -> str:
    """A token by itself: its text, or its number where there is no tokenizer; "" for -1."""
    if token < 0:
        return ""
    if tokenizer is None:
        return f"#{token}"
    return _with_special_tokens(tokenizer)([int(token)]) or str(tokenizer.convert_ids_to_tokens(int(token)))


def _cut(runs: Sequence[Sequence[int]], context: list[int], decode: Decode) -> list[str]:
    """The pieces of neighbouring runs, read behind `context`: a word alone may lose the space before it."""
    text, lead = decode([*context, *itertools.chain(*runs)]), decode(context)
    if not text.startswith(lead):  # a tokenizer that rewrites what it wrote before
        return _cut(runs, [], decode)
    reached, pieces = len(lead), []
    for run in runs:
        context = [*context, *run]
        # What the runs so far read as and will not change: an incomplete character at their end still does.
        settled = len(os.path.commonprefix([decode(context), text]))  # noqa: RUF071  # by character
        pieces.append(text[reached:settled])
        reached = max(reached, settled)
    return pieces


def _complete(tokens: list[int], decode: Decode) -> list[int]:
    """The tokens up to the last one that completes a character."""
    end = len(tokens)
    while decode(tokens[:end]).endswith(_INCOMPLETE):
        end -= 1
    return tokens[:end]


def _with_special_tokens(tokenizer: Tokenizer) -> Decode:
    return lambda ids: str(tokenizer.decode(ids, clean_up_tokenization_spaces=False))
