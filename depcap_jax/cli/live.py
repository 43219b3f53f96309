"""An answer that fills in as it is decoded."""

from __future__ import annotations

from rich.live import Live
from rich.text import Text

from depcap_jax.cli.terminal import out
from depcap_jax.text import Partial, TextGenerator


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
    """Committed text, what this pass committed, and open positions."""
    drawn = Text()
    for text, step in partial.pieces:
        drawn.append(text, "dim" if step == 0 else "bold green" if step == partial.snapshot.nfe else "")
    begin, end = partial.snapshot.block
    drawn.append(f"\n[pass {partial.snapshot.nfe}, block {begin} to {end}]", "dim")
    return drawn
