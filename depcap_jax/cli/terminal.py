"""What the terminal shows: what goes on, and an answer that fills in as it is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from rich.console import Console
from rich.live import Live
from rich.text import Text

from depcap_jax.text.codec import Prompt
from depcap_jax.text.generator import Partial, TextGenerator

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


def show(generator: TextGenerator, prompt: Prompt, key: jax.Array) -> str:
    """Decodes a prompt before the reader's eyes; prints nothing but the answer where there is no terminal.

    Returns the answer.
    """
    text = ""
    # A console of its own: what changes in place has to be wrapped, and what stays must not be.
    console = Console(quiet=not out.is_terminal)
    with Live(Text("..."), console=console, auto_refresh=False) as live:
        for partial in generator.stream(prompt, key=key):
            text = partial.text
            live.update(_draw(partial), refresh=True)
        live.update(Text(""))
        live.transient = True
    print(harmless(text))  # whole, however small the screen is, and ready to be copied
    return text


def _draw(partial: Partial) -> Text:
    """Committed text, what this pass committed in the colour of its confidence, and open positions."""
    now, drawn = partial.snapshot, Text()
    fresh = now.confidence[now.commit_step == now.nfe]
    least = fresh.min()
    colour = "green" if least >= 0.9 else "yellow" if least >= 0.5 else "red"
    for text, step in partial.pieces:
        style = "dim" if step == 0 else f"bold {colour}" if step == now.nfe else ""
        drawn.append(harmless(text), style)
    begin, end = now.block
    confidence = f"confidence {least:.2f} to {fresh.max():.2f}"
    drawn.append(f"\n[pass {now.nfe}, block {begin} to {end}, {len(fresh)} committed, {confidence}]", "dim")
    return drawn
