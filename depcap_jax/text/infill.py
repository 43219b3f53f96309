"""Gaps in a text, filled in place: all of them in one decode, and everything else as it was.

Axis letter: T positions of the text, its prompt before it.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

import jax
import numpy as np

from depcap_jax.decoding.generate import generate_canvas
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import raise_for_status
from depcap_jax.text.batching import SHORTEST_PROMPT, at_least, doubling
from depcap_jax.text.codec import Codec, Prompt
from depcap_jax.text.spelling import Decode, spell_runs

# The shortest span from the first gap to the last: below it a compilation costs more than the padding does.
_SHORTEST_SPAN = 16

_GAP = re.compile(r"\[gap:(\d+)\]")


@dataclasses.dataclass(frozen=True)
class Infilling:
    """What became of one template."""

    text: str
    """The template's own text, with the fillings in it."""
    fillings: tuple[str, ...]
    """What was put into each gap."""
    tokens: tuple[int, ...]
    """All ids, gaps filled, without the prompt's; an end-of-text id in a gap is here but not in the text."""
    nfe: int
    """Forward passes spent."""


def infill(
    model: DiffusionLM,
    codec: Codec,
    config: DecodeConfig,
    template: str | Sequence[str | int],
    prompt: Prompt | None,
    key: jax.Array | None,
) -> Infilling:
    """As `TextGenerator.infill`, which says what a template is; `key` is what it draws with."""
    parts = parse_template(template)
    lead = [] if prompt is None else codec.encode_prompt(prompt, "prompt")
    mask = model.config.mask_token_id
    pieces = [[mask] * part if isinstance(part, int) else codec.encode_part(part) for part in parts]
    tokens = np.asarray([*lead, *itertools.chain(*pieces)], np.int32)
    gaps = [isinstance(part, int) for part, piece in zip(parts, pieces, strict=True) for _ in piece]
    filled, nfe = _fill(model, config, tokens, np.asarray([*[False] * len(lead), *gaps]), key)
    ids = iter(filled[len(lead) :].tolist())
    pieces = [list(itertools.islice(ids, len(piece))) for piece in pieces]
    fillings = read_fillings(parts, pieces, model.config.eos_token_ids, codec.decode)
    remaining = iter(fillings)
    text = "".join(part if isinstance(part, str) else next(remaining) for part in parts)
    return Infilling(text, tuple(fillings), tuple(itertools.chain(*pieces)), nfe)


def parse_template(template: str | Sequence[str | int]) -> list[str | int]:
    """A template's parts: texts, and gaps as their number of tokens.

    Raises:
      TypeError: if it is neither a text nor a list of texts and integers.
      ValueError: if it has no gap, or a gap of no tokens.
    """
    if isinstance(template, str):
        pieces = _GAP.split(template)  # texts and numbers in turn
        parts = [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)]
    elif isinstance(template, Sequence) and not isinstance(template, bytes):
        parts = list(template)
    else:
        raise TypeError(f"a template is a text or a list of texts and gap lengths, got {template!r}")
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, (str, int)):
            raise TypeError(f"a template's parts are texts and integers, got {part!r}")
        if isinstance(part, int) and part < 1:
            raise ValueError(f"a gap has at least 1 token, got {part}")
    if not any(isinstance(part, int) for part in parts):
        raise ValueError(f"the template has no gap; write [gap:8] for one of 8 tokens, got {template!r}")
    return parts


def read_fillings(
    parts: Sequence[str | int], pieces: Sequence[Sequence[int]], dropped: Sequence[int], decode: Decode
) -> list[str]:
    """The text of each gap, as it reads in its place.

    Args:
      parts: a template, as `parse_template` gives it.
      pieces: the ids of each part, gaps filled.
      dropped: ids that a gap may hold but that are not shown.
      decode: how the tokenizer reads ids.
    """
    runs = [
        piece if isinstance(part, str) else [token for token in piece if token not in dropped]
        for part, piece in zip(parts, pieces, strict=True)
    ]
    fillings: list[str] = []
    written = read = ""  # the text so far: as its author wrote it, and as the tokenizer reads it
    for part, text in zip(parts, spell_runs(runs, decode), strict=True):
        shown = part if isinstance(part, str) else text
        if isinstance(part, int):
            # A tokenizer that drops a space and writes it back itself must not write a second one.
            if written[-1:].isspace() and not read[-1:].isspace():
                shown = text.lstrip(" ")
            fillings.append(shown)
        written, read = written + shown, read + text
    return fillings


def _fill(
    model: DiffusionLM, config: DecodeConfig, tokens: np.ndarray, is_open: np.ndarray, key: jax.Array | None
) -> tuple[np.ndarray, int]:
    """The ids [T] with those at open positions [T] decoded, and the passes spent."""
    length, context = len(tokens), model.config.max_length
    if length > context:
        raise ValueError(f"the template has {length} tokens; the model's context has {context}")
    width = at_least(length, doubling(SHORTEST_PROMPT, context))
    gaps = np.flatnonzero(is_open)
    span = at_least(int(gaps[-1] - gaps[0]) + 1, doubling(_SHORTEST_SPAN, width))
    # An end-of-text token must not stop it: the text goes on behind the gap.
    config = dataclasses.replace(config, gen_length=span, stop_at_eos=False)
    canvas, open_ = (np.pad(row, (0, width - length))[None] for row in (tokens, is_open))
    result = generate_canvas(model, canvas, open_, np.asarray([length], np.int32), config=config, key=key)
    raise_for_status(result)
    filled = tokens.copy()
    filled[gaps] = np.asarray(result.tokens[0])[gaps - gaps[0]]
    return filled, int(result.nfe[0])
