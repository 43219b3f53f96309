"""A traced decode as a web page that plays it: one file, no network, a few kilobytes per hundred tokens.

    result = depcap_jax.generate(model, ids, config=config, trace=True)
    viewer.show(result, tokenizer=tokenizer)                              # in a notebook
    viewer.save("trace.html", result, other, tokenizer=tokenizer, names=["depcap", "vanilla"])

Everything from the decode reaches the page as JSON and is written with `textContent`: no token is markup.
"""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from depcap_jax.decoding.state import DecodeResult
from depcap_jax.inspect.replay import Replay, replay
from depcap_jax.inspect.single_file import fill
from depcap_jax.text.spelling import Tokenizer, spell, token_text

_TEMPLATE = Path(__file__).with_name("viewer.html")


def page(
    *results: DecodeResult,
    tokenizer: Tokenizer | None = None,
    names: Sequence[str] | None = None,
    prompt: str = "",
    title: str = "A decode, pass by pass",
    row: int = 0,
) -> str:
    """The page as a text.

    Args:
      *results: of `generate(..., trace=True)`; several are played side by side.
      tokenizer: spells the tokens; without one they are shown as numbers.
      names: what to call each result, its recipe say.
      prompt: the text that was answered.
      title: what the page is called.
      row: which row of each result.

    Raises:
      ValueError: if there is no result, one has no trace or no such row, or names do not match them.
    """
    if not results:
        raise ValueError("give at least one result of generate(..., trace=True)")
    if names is None:
        names = ["decode"] if len(results) == 1 else [f"decode {n}" for n in range(1, len(results) + 1)]
    if isinstance(names, str) or len(names) != len(results):
        raise ValueError(f"names must have one name per result ({len(results)} of them), got {names!r}")
    runs = [
        _run(replay(result, row), str(name), tokenizer) for result, name in zip(results, names, strict=True)
    ]
    return fill(_TEMPLATE, title, {"title": title, "prompt": prompt, "runs": runs})


def save(path: str | os.PathLike[str], *results: DecodeResult, **settings: Any) -> None:
    """Writes the page to a file; arguments as for `page`.

    Raises:
      ValueError: as `page`.
      OSError: if the file cannot be written.
    """
    Path(path).write_text(page(*results, **settings), encoding="utf-8")


def show(*results: DecodeResult, height: int = 620, **settings: Any) -> Any:
    """The page in a frame of a notebook, `height` pixels high; other arguments as for `page`.

    Raises:
      ValueError: as `page`.
      ModuleNotFoundError: outside of a notebook, without IPython.
    """
    try:
        from IPython.display import HTML
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("show is for notebooks and needs IPython; save writes a file") from error
    document = html.escape(page(*results, **settings), quote=True)
    style = "width:100%;border:1px solid #8884;border-radius:8px"
    # IPython warns of a bare <iframe> and advises its own, which takes an address; hence the <div>.
    return HTML(f'<div><iframe srcdoc="{document}" height="{int(height)}" style="{style}"></iframe></div>')


def _run(decode: Replay, name: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What the page needs to know of one decode, cut to the positions that a block covered."""
    reach = decode.reach
    alternatives, chances = decode.alternatives[:reach], decode.alternative_confidence[:reach]
    used = np.unique(np.concatenate([decode.guess[decode.guess >= 0], alternatives[alternatives >= 0]]))
    index = {int(token): number for number, token in enumerate(used)}
    special = [] if tokenizer is None else tokenizer.all_special_ids
    tokens = decode.tokens[:reach]
    guesses, size = _pack(decode, index)
    return {
        "name": name,
        "nfe": decode.nfe,
        "visible": decode.visible,
        "untouched": len(decode.tokens) - reach,
        "table": [token_text(token, tokenizer) for token in index],
        "tokens": [index[token] if token >= 0 else -1 for token in tokens.tolist()],
        "pieces": spell(tokens, tokenizer),
        "special": np.flatnonzero(np.isin(tokens, special)).tolist(),
        "steps": decode.commit_step[:reach].tolist(),
        "conf": _numbers(decode.commit_confidence[:reach]),
        "alternatives": [
            [[index[token], chance] for token, chance in zip(ids, _numbers(p), strict=True) if token >= 0]
            for ids, p in zip(alternatives.tolist(), chances, strict=True)
        ],
        "blocks": [
            vars(block)
            | {"curves": {name: _numbers(signal) for name, signal in decode.partition_signals(block).items()}}
            for block in decode.blocks
        ],
        "passes": [_pass(decode, step) for step in range(1, decode.nfe + 1)],
        "given": np.flatnonzero(~(decode.guess[:, :reach] >= 0).any(axis=0)).tolist(),
        "guesses": guesses,
        "guess_bytes": size,
    }


def _pack(decode: Replay, index: dict[int, int]) -> tuple[str, int]:
    """Each pass's candidates in order: a token's number, its confidence in a byte; and bytes per number."""
    size = 2 if len(index) <= 2**16 else 4
    record = np.dtype([("token", f"<u{size}"), ("confidence", "u1")])
    there = decode.guess >= 0  # pass by pass, positions ascending: the order in which the page asks
    packed = np.empty(int(there.sum()), record)
    packed["token"] = [index[token] for token in decode.guess[there].tolist()]
    packed["confidence"] = np.round(255 * np.nan_to_num(decode.confidence[there]))
    return base64.b64encode(packed.tobytes()).decode(), size


def _pass(decode: Replay, step: int) -> dict[str, Any]:
    """What the policies told of a pass (pairs of positions, numbers of positions, single numbers); and which
    positions stood committed during it that are open again later: these have no guess of this pass."""
    return {
        "standing": decode.revoked_later(step).tolist(),
        "pairs": {name: edges.ravel().tolist() for name, edges in decode.pairs(step).items()},
        "numbers": {name: _numbers(numbers) for name, numbers in decode.selection_signals(step).items()},
        "facts": {name: _number(value) for name, value in decode.facts(step).items()},
    }


def _numbers(x: np.ndarray) -> list[float | None]:
    return [_number(value) for value in x.tolist()]


def _number(value: float) -> float | None:
    """Four digits are more than a screen shows; integers are whole; what is not finite is null."""
    if isinstance(value, int):
        return value
    return float(f"{value:.4g}") if np.isfinite(value) else None
