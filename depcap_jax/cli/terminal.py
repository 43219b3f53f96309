"""What the terminal shows while one waits; nothing of it where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
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


def table(*columns: str) -> Table:
    """A table without lines; the first column is text, the others are numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for index, name in enumerate(columns):
        made.add_column(name, justify="right" if index else "left", no_wrap=True)
    return made
