"""Programs in a text: what a model wrote for MBPP and HumanEval, made ready to be run with its tests."""

from __future__ import annotations

import re

_FENCE = re.compile(r"```[a-zA-Z]*[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)


def find_code(text: str) -> str:
    """The first fenced block of a text, closed or cut off; the whole text without one."""
    fenced = _FENCE.search(text)
    return fenced[1] if fenced else text


def complete_function(prompt: str, text: str, name: str) -> str:
    """A program that defines the function that `prompt` begins.

    Args:
      prompt: imports, helpers, and the function's head and docstring.
      text: its body, as a continuation of the prompt; or all of it again, in a fenced block or bare.
      name: the function.
    """
    code = find_code(text)
    head = re.compile(rf"^(?:async )?def {re.escape(name)}\b", re.MULTILINE)
    continues = code.lstrip("\r\n")[:1].isspace()  # a body; whatever follows it is not asked for
    if head.search(code) and not continues:
        begins = head.search(prompt)
        return prompt[: begins.start() if begins else 0] + "\n" + code
    return prompt + _indented_part(code)


def _indented_part(code: str) -> str:
    """The lines up to the first that is not part of a function's body: a model may go on and on."""
    lines = code.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if number and line.strip() and not line[0].isspace() and not line.startswith("#"):
            return "".join(lines[:number])
    return code
