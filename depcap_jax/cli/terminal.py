"""What the terminal shows while one waits; nothing of it where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

out = Console(highlight=False, markup=False, soft_wrap=True)
"""Standard output, plain unless it is a terminal."""
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
"""Standard error, for what is not the answer."""


def harmless(text: str) -> str:
    """The text with a picture (U+241B) for every control character but line break and tab.

    What a model or a stranger wrote must not command the terminal that shows it.
    """
    return text.translate(_CONTROLS)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says what goes on, on a terminal, and takes it back."""
    if not err.is_terminal:
        yield
        return
    with err.status(Text(f"{what} ...")):
        yield
