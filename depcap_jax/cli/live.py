"""An answer that fills in as it is decoded."""

from __future__ import annotations

from rich.live import Live
from rich.text import Text

from depcap_jax.cli.terminal import out
from depcap_jax.text.generator import Partial, TextGenerator


def show(generator: TextGenerator, prompt: str | list[dict[str, str]]) -> Partial | None:
    """Decodes a prompt before the reader's eyes; prints nothing but the answer where there is no terminal.

    Returns the finished answer; None if the model had nothing to decode.
    """
    last = None
    if not out.is_terminal:
        for state in generator.stream(prompt):
            last = state
        out.print(Text(last.text if last else ""))
        return last
    with Live(Text("..."), console=out, auto_refresh=False) as live:
        for last in generator.stream(prompt):
            live.update(_draw(last), refresh=True)
        # What stays on the screen is the bare answer, ready to be copied.
        live.update(Text(last.text if last else ""), refresh=True)
    return last


def _draw(partial: Partial) -> Text:
    """Committed text, what this pass committed in the colour of its confidence, and open positions."""
    seen, drawn = partial.snapshot, Text()
    fresh = seen.confidence[seen.commit_step == seen.nfe]
    for text, step in partial.pieces:
        drawn.append(text, "dim" if step == 0 else f"bold {_colour(fresh.min())}" if step == seen.nfe else "")
    begin, end = seen.block
    drawn.append(f"\n[pass {seen.nfe}, block {begin} to {end}, ", "dim")
    drawn.append(f"{len(fresh)} committed, confidence {fresh.min():.2f} to {fresh.max():.2f}", "dim")
    drawn.append("]", "dim")
    return drawn


def _colour(confidence: float) -> str:
    return "green" if confidence >= 0.9 else "yellow" if confidence >= 0.5 else "red"
