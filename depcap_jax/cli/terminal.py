"""What the terminal shows while one waits; nothing of it where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

out = Console(highlight=False, markup=False, soft_wrap=True)
"""Standard output, plain unless it is a terminal."""
err = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
"""Standard error, for what is not the answer."""


@contextmanager
def working(what: str) -> Iterator[None]:
    """Says what goes on, on a terminal, and takes it back."""
    if not err.is_terminal:
        yield
        return
    with err.status(Text(f"{what} ...")):
        yield
