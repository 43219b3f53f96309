"""Conversations as text, by a template that came with a tokenizer: a program of someone else's."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

# For templates that ask: the diffusion models made from Qwen3 answer without a part for thoughts.
_SETTINGS = {"enable_thinking": False}

# Of a processor, on one conversation; a thousand turns take a small part of it.
_SECONDS = 5.0


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
