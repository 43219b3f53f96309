"""Conversations as text, by a template that came with a tokenizer: a program of someone else's."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

# For templates that ask: the diffusion models made from Qwen3 answer without a part for thoughts.
_SETTINGS = {"enable_thinking": False}

# Of a processor, on one conversation; a thousand turns take a small part of it.
_SECONDS = 5.0

# Characters that no one has given a meaning: one of them that is not in the text marks places in it.
_PRIVATE = range(0xF0000, 0xFFFFE)


def encode_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], *, special_tokens: bool = False
) -> list[int]:
    """The ids of a conversation; with `special_tokens`, added tokens that a message spells are tokens too.

    Otherwise a mark goes into each of them, behind its first character, before the template is rendered, and
    the text is cut there: no part spells it any more, also where the template strips a content or cuts it. A
    template that glues contents to words of its own until they make up such a token is not seen through,
    and one of a single character cannot be cut. Ordinary text is one part, with the ids that it has anyway.
    """
    parts = [render_chat(tokenizer, messages)] if special_tokens else _cut(tokenizer, messages)
    return [token for part in parts for token in tokenizer(part, add_special_tokens=False)["input_ids"]]


def _cut(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[str]:
    """A conversation as parts of a text, none of which spells an added token that a message spells.

    Raises:
      ValueError: if a field that is no text, such as a list of calls, has one in it.
    """
    # All of them: the token that begins a turn need not be one that the tokenizer calls special.
    spelt = [added.content for added in tokenizer.added_tokens_decoder.values()]
    written = {text for message in messages for value in message.values() for text in _texts(value)}
    used = set("".join(written))
    mark = next((chr(code) for code in _PRIVATE if chr(code) not in used), None)
    if mark is None:
        raise ValueError("a conversation must not hold every character from U+F0000 to U+FFFFD")
    begins = re.compile(f"(?=(?:{'|'.join(map(re.escape, spelt)) or '(?!)'})).", re.DOTALL)

    def cut(key: str, value: Any) -> Any:
        if isinstance(value, str):
            return begins.sub(lambda found: found[0] + mark, value)
        for text in filter(begins.search, _texts(value)):
            raise ValueError(
                f"a message's {key!r} must not spell a token of the tokenizer's own, got {text!r}"
            )
        return value

    marked = [{key: cut(key, value) for key, value in message.items()} for message in messages]
    return render_chat(tokenizer, marked).split(mark)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a message's field, which may be a JSON value of any kind."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(map(_texts, itertools.chain.from_iterable(value.items())))
    elif isinstance(value, Sequence):
        yield from itertools.chain.from_iterable(map(_texts, value))


def render_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
) -> str:
    """A conversation as text; without `add_generation_prompt` its last message is to be continued.

    Raises:
      ValueError: if the template is broken, refuses the conversation, or does not end.
    """
    try:
        with _stopped_after(_SECONDS):
            return tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **_SETTINGS,
            )
    except Exception as error:  # whatever the template's own code raises
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"the tokenizer's chat template cannot be used: {reason}") from error


@contextlib.contextmanager
def _stopped_after(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside the block once this thread has computed for so long.

    Python looks at the clock between two lines, on any thread. One operation that never returns to Python,
    such as a power of a huge number, is not stopped.
    """
    end = time.thread_time() + seconds

    def look(frame: FrameType, event: str, argument: Any) -> Any:
        if time.thread_time() > end:
            raise TimeoutError(f"it has not ended after {seconds:g} seconds of computing")
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
