"""Pictures of a traced decode, with matplotlib: each is one call and returns a figure.

    result = depcap_jax.decoding.generate(model, ids, config=config, trace=True)
    plots.decode_map(result)        # positions across, passes down, colour is confidence
    plots.signals(result, block=2)  # influence, uncertainty and score, with the boundary
    plots.conflicts(result, 3)      # the conflict graph of pass 3
    plots.progress(result)          # block sizes, and commits a pass

Needs the extra `plot`: pip install "depcap_jax[plot]".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depcap_jax.decoding.policy import check_count
from depcap_jax.decoding.state import DecodeResult
from depcap_jax.inspect.replay import Block, Replay, replay
from depcap_jax.text.spelling import spell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

# The colours of the paper's framework figure: influence is green, uncertainty and conflicts are red.
INFLUENCE, UNCERTAINTY, SCORE, CONFLICT = "#2a9d6f", "#d1495b", "#3d5a98", "#d1495b"
_INK, _FAINT = "#3a3f47", "#c9ced6"
# Beyond this many positions their tokens would overlap.
_MOST_LABELS = 64


def decode_map(
    result: DecodeResult, row: int = 0, *, tokenizer: PreTrainedTokenizerBase | None = None
) -> Figure:
    """Positions across, passes down; colour is the confidence of each candidate at each pass.

    A dot is a commit, and a rectangle is a block: its positions, from the pass that opened it to its last.

    Args:
      result: of `generate(..., trace=True)`.
      row: which of its rows.
      tokenizer: writes the tokens below, where they fit.

    Raises:
      ValueError: if there is no trace, or no such row.
      ModuleNotFoundError: without matplotlib.
    """
    seen = _decoded(result, row)
    plt = _pyplot()
    width, height = max(seen.reach, 1), seen.nfe
    figure, axes = plt.subplots(
        figsize=(min(max(5.0, 0.17 * width + 1.5), 16.0), min(max(2.2, 0.17 * height + 1.1), 12.0)),
        layout="constrained",
    )
    shown = np.ma.masked_invalid(seen.confidence[:, :width])
    edges = (-0.5, width - 0.5, height + 0.5, 0.5)
    image = axes.imshow(shown, cmap="GnBu", vmin=0, vmax=1, aspect="auto", extent=edges, interpolation="none")
    done = np.flatnonzero(seen.commit_step[:width])
    dots = {"s": 14, "facecolor": "white", "edgecolor": _INK, "linewidths": 0.7}
    axes.scatter(done, seen.commit_step[done], gid="commits", zorder=3, **dots)
    for number, block in enumerate(seen.blocks):
        last = _last_pass(seen, number)
        corner = (block.start - 0.5, block.begun - 0.5)
        size = (block.size, last - block.begun + 1)
        axes.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=_INK, linewidth=1.0, gid="block"))
    axes.set_ylabel("forward pass")
    _label_positions(axes, seen, tokenizer, 0, width)
    figure.colorbar(image, ax=axes, label="confidence", shrink=0.8, pad=0.01)
    return _finished(figure, axes)


def signals(
    result: DecodeResult, block: int = 1, row: int = 0, *, tokenizer: PreTrainedTokenizerBase | None = None
) -> Figure:
    """Influence I and uncertainty H above, score S below, over a block's window, with the boundary.

    Args:
      result: of `generate(..., trace=True)`, with blocks cut by DepGA.
      block: which block, from 0; the first has no block before it, and so an uncertainty only.
      row: which row of the result.
      tokenizer: writes the tokens below, where they fit.

    Raises:
      ValueError: if there is no trace, row or block of that number, or the blocks were cut otherwise.
      ModuleNotFoundError: without matplotlib.
    """
    seen = _decoded(result, row)
    cut = _block(seen, block)
    if cut.influence is None or cut.uncertainty is None or cut.score is None:
        raise ValueError("these blocks were not cut by DepGABlocks: there are no signals to draw")
    position = cut.start + np.arange(len(cut.score))
    plt = _pyplot()
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 4), layout="constrained")
    above.plot(position, cut.influence, color=INFLUENCE, marker=".", label="influence $I_k$")
    above.plot(position, cut.uncertainty, color=UNCERTAINTY, marker=".", label="uncertainty $H_k$")
    above.set_ylabel("nats")
    above.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderpad=0)
    below.plot(position, cut.score, color=SCORE, marker=".", label="score $S_k$")
    below.axhline(0, color=_INK, linewidth=0.8)
    below.set_ylabel("score $S_k$")
    for axes in (above, below):
        axes.axvspan(cut.start - 0.5, cut.end - 0.5, color=INFLUENCE, alpha=0.08, linewidth=0)
        axes.axvline(cut.end - 0.5, color=_INK, linestyle="--", linewidth=1, gid="boundary")
    above.set_title(f"block {block}: length {cut.size}", loc="left", fontsize=10)
    _label_positions(below, seen, tokenizer, cut.start, cut.start + len(position))
    return _finished(figure, above, below)


def conflicts(
    result: DecodeResult, step: int, row: int = 0, *, tokenizer: PreTrainedTokenizerBase | None = None
) -> Figure:
    """The conflict graph of a pass: its candidates by position and confidence, conflicts as arcs.

    A filled mark was committed at this pass.

    Args:
      result: of `generate(..., trace=True)`, with positions chosen by `ConflictFree`.
      step: which forward pass, from 1.
      row: which row of the result.
      tokenizer: writes the tokens that each position would be committed with.

    Raises:
      ValueError: if there is no trace, row or pass of that number, or the selection knows no conflicts.
      ModuleNotFoundError: without matplotlib.
    """
    seen = _decoded(result, row)
    if seen.conflicts is None:
        raise ValueError("these positions were not chosen by ConflictFree: there are no conflicts to draw")
    check_count("step", step, 1, seen.nfe)
    block = [block for block in seen.blocks if block.begun <= step][-1]
    confidence = seen.confidence[step - 1]
    candidates = np.flatnonzero(np.isfinite(confidence))
    taken = seen.commit_step[candidates] == step
    plt = _pyplot()
    from matplotlib.patches import Arc

    figure, (above, below) = plt.subplots(
        2, sharex=True, figsize=(8, 3.6), height_ratios=(1, 1), layout="constrained"
    )
    longest = max((j - i for i, j in seen.conflicts[step - 1]), default=1)
    for i, j in seen.conflicts[step - 1]:
        arc = Arc(((i + j) / 2, 0), j - i, 2 * (j - i) / longest, theta1=0, theta2=180, gid=f"{i}-{j}")
        arc.set(edgecolor=CONFLICT, linewidth=1.2, alpha=0.7)
        above.add_patch(arc)
    above.set(ylim=(0, 1.1), yticks=[], ylabel="conflicts")
    below.vlines(candidates, 0, confidence[candidates], color=_FAINT, linewidth=1)
    for chosen, face, label in ((taken, INFLUENCE, "committed"), (~taken, "white", "left open")):
        below.scatter(
            candidates[chosen],
            confidence[candidates[chosen]],
            s=26,
            facecolor=face,
            edgecolor=INFLUENCE,
            label=label,
            zorder=3,
        )
    below.set(ylim=(0, 1.05), ylabel="confidence", xlim=(block.start - 0.5, block.end - 0.5))
    above.legend(
        *below.get_legend_handles_labels(),
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=2,
        borderpad=0,
    )
    above.set_title(f"pass {step}: {len(seen.conflicts[step - 1])} conflicts", loc="left", fontsize=10)
    labels = spell(np.where(np.isfinite(confidence), seen.guess[step - 1], seen.tokens), tokenizer)
    _label_positions(below, seen, tokenizer, block.start, block.end, labels)
    return _finished(figure, above, below)


def progress(result: DecodeResult, row: int = 0) -> Figure:
    """Block sizes, block by block, and how many tokens each forward pass committed.

    Raises:
      ValueError: if there is no trace, or no such row.
      ModuleNotFoundError: without matplotlib.
    """
    seen = _decoded(result, row)
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained", width_ratios=(2, 3))
    left.bar(range(len(seen.blocks)), [block.size for block in seen.blocks], color=SCORE, width=0.7)
    left.set(xlabel="block", ylabel="positions")
    right.bar(range(1, seen.nfe + 1), seen.commits, color=INFLUENCE, width=0.7)
    right.set(xlabel="forward pass", ylabel="tokens committed")
    mean = seen.commits.mean()
    right.axhline(mean, color=_INK, linewidth=0.8, linestyle="--", gid="mean")
    right.set_title(f"{seen.commits.sum()} tokens, {seen.nfe} passes: {mean:.2f} a pass", fontsize=10)
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.get_major_locator().set_params(integer=True)
    return _finished(figure, left, right)


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'plots need matplotlib; it comes with the extra plot: pip install "depcap_jax[plot]"'
        ) from error
    return pyplot


def _decoded(result: DecodeResult, row: int) -> Replay:
    seen = replay(result, row)
    if seen.nfe == 0:
        raise ValueError(f"row {row} was not decoded: it took no forward pass")
    return seen


def _block(seen: Replay, number: int) -> Block:
    check_count("block", number, 0, len(seen.blocks) - 1)
    return seen.blocks[number]


def _last_pass(seen: Replay, number: int) -> int:
    """The last pass inside a block."""
    following = seen.blocks[number + 1 : number + 2]
    return following[0].begun - 1 if following else seen.nfe


def _label_positions(
    axes: Axes,
    seen: Replay,
    tokenizer: PreTrainedTokenizerBase | None,
    begin: int,
    end: int,
    texts: list[str] | None = None,
) -> None:
    """Tokens below their positions if there is a tokenizer and room, else numbers."""
    if tokenizer is None or end - begin > _MOST_LABELS:
        axes.set_xlabel("position in the answer")
        return
    texts = spell(seen.tokens, tokenizer) if texts is None else texts
    marks = dict.fromkeys(tokenizer.all_special_tokens, "∎")  # the end of the text, above all: a long word
    bare = [text.strip(" ") for text in texts[begin:end]]
    readable = [marks.get(text, text).replace("\n", "↵").replace("$", r"\$") or "·" for text in bare]
    axes.set_xticks(range(begin, end), readable, rotation=90, fontsize=8)


def _finished(figure: Any, *panels: Any) -> Figure:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    # Closed, a notebook shows the returned figure once and not twice.
    _pyplot().close(figure)
    return figure
