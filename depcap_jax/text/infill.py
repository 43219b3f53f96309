"""Gaps in a text, filled in place: all of them in one decode, and everything else as it was."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import jax
import numpy as np

from depcap_jax.decoding.loop import decode, init_state
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.state import DecodeError, DiffusionLM, Status
from depcap_jax.text.batching import SHORTEST_PROMPT, at_least, doubling
from depcap_jax.text.codec import Codec, Prompt, parse_template

# The narrowest span: below it a compilation costs more than the padding does.
_SHORTEST_SPAN = 16


@dataclasses.dataclass(frozen=True)
class Infilled:
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
    keys: jax.Array | None,
) -> Infilled:
    """As `TextGenerator.infill`, which says what a template is; `keys` [1] are for sampling."""
    parts = parse_template(template)
    lead = [] if prompt is None else codec.encode_prompt(prompt, "prompt")
    mask = model.config.mask_token_id
    pieces = [[mask] * part if isinstance(part, int) else codec.encode_part(part) for part in parts]
    tokens = np.asarray([*lead, *itertools.chain(*pieces)], np.int32)
    gaps = [isinstance(part, int) for part, piece in zip(parts, pieces, strict=True) for _ in piece]
    filled, nfe = _fill_in(model, config, tokens, np.asarray([*[False] * len(lead), *gaps]), keys)
    ends = len(lead) + np.cumsum([len(piece) for piece in pieces])
    pieces = [filled[end - len(piece) : end].tolist() for piece, end in zip(pieces, ends, strict=True)]
    fillings = codec.read_fillings(parts, pieces, model.config.eos_token_ids)
    remaining = iter(fillings)
    text = "".join(part if isinstance(part, str) else next(remaining) for part in parts)
    return Infilled(text, tuple(fillings), tuple(filled[len(lead) :].tolist()), nfe)


def _fill_in(
    model: DiffusionLM,
    config: DecodeConfig,
    tokens: np.ndarray,
    is_open: np.ndarray,
    keys: jax.Array | None,
) -> tuple[np.ndarray, int]:
    """Decodes the open positions of one row of ids; the ids with those filled, and the passes spent."""
    length, context = len(tokens), model.config.max_length
    if length > context:
        raise ValueError(f"the template has {length} tokens; the model's context has {context}")
    width = at_least(length, doubling(SHORTEST_PROMPT, context))
    first, last = np.flatnonzero(is_open)[[0, -1]]
    span = at_least(int(last - first) + 1, doubling(_SHORTEST_SPAN, width))
    # An end-of-text token must not stop it: the text goes on behind the gap.
    config = dataclasses.replace(config, gen_length=span, stop_at_eos=False)
    padding = (0, width - length)
    canvas, is_open = np.pad(tokens, padding)[None], np.pad(is_open, padding)[None]
    filled, status, nfe = _fill(model, canvas, is_open, np.asarray([length], np.int32), config, keys)
    if status[0] != Status.OK:
        raise DecodeError(Status(int(status[0])).message)
    return np.asarray(filled[0])[:length], int(nfe[0])


@jax.jit
def _fill(
    model: DiffusionLM,
    tokens: jax.Array,
    open_: jax.Array,
    length: jax.Array,
    config: DecodeConfig,
    keys: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    state = decode(model, init_state(model, config, tokens, open_, length, key=keys), config)
    return state.tokens, state.status, state.nfe
