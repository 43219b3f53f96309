"""An answer that fills in as it is decoded."""

from __future__ import annotations

import jax
from rich.live import Live
from rich.text import Text

from depcap_jax.cli.terminal import out
from depcap_jax.text.codec import Prompt
from depcap_jax.text.generator import Partial, TextGenerator


def show(generator: TextGenerator, prompt: Prompt, key: jax.Array) -> str:
    """Decodes a prompt before the reader's eyes; prints nothing but the answer where there is no terminal.

    Returns the answer.
    """
    text = ""
    if not out.is_terminal:
        for partial in generator.stream(prompt, key=key):
            text = partial.text
        out.print(Text(text))
        return text
    with Live(Text("..."), console=out, auto_refresh=False) as live:
        for partial in generator.stream(prompt, key=key):
            text = partial.text
            live.update(_draw(partial), refresh=True)
        live.update(Text(text), refresh=True)  # what stays is the bare answer, ready to be copied
    return text


def _draw(partial: Partial) -> Text:
    """Committed text, what this pass committed in the colour of its confidence, and open positions."""
    now, drawn = partial.snapshot, Text()
    fresh = now.confidence[now.commit_step == now.nfe]
    for text, step in partial.pieces:
        drawn.append(text, "dim" if step == 0 else f"bold {_colour(fresh.min())}" if step == now.nfe else "")
    begin, end = now.block
    confidence = f"confidence {fresh.min():.2f} to {fresh.max():.2f}"
    drawn.append(f"\n[pass {now.nfe}, block {begin} to {end}, {len(fresh)} committed, {confidence}]", "dim")
    return drawn


def _colour(confidence: float) -> str:
    return "green" if confidence >= 0.9 else "yellow" if confidence >= 0.5 else "red"
