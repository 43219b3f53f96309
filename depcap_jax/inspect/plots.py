"""Pictures of a traced decode, with matplotlib: each is one call and returns a figure.

    result = depcap_jax.generate(model, ids, config=config, trace=True)
    plots.decode_map(result)        # positions across, passes down, colour is confidence
    plots.signals(result, block=2)  # what the partition told of the positions ahead, with the boundary
    plots.conflicts(result, 3)      # what the selection told at pass 3, pairs as arcs
    plots.progress(result)          # block sizes, and commits per pass

Signals and conflicts are drawn from what the policies tell, whoever wrote them.

All take the result of `generate(..., trace=True)` and the number of its row; a `tokenizer` writes the tokens
below their positions, where they fit. All raise ValueError if there is no trace, or no such row, block or
pass, and ModuleNotFoundError without matplotlib: the extra `plot`, pip install "depcap_jax[plot]".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.state import DecodeResult
from depcap_jax.inspect.replay import Replay, replay
from depcap_jax.text.spelling import Tokenizer, spell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of the paper's framework figure: influence is green, uncertainty and conflicts are red.
INFLUENCE, UNCERTAINTY, SCORE, CONFLICT = "#2a9d6f", "#d1495b", "#3d5a98", "#d1495b"
LOOK = {
    "influence": ("influence $I_k$", INFLUENCE),
    "uncertainty": ("uncertainty $H_k$", UNCERTAINTY),
    "score": ("score $S_k$", SCORE),
}
"""How the paper's own signals are called and coloured; others go by their own names."""
_INK, _FAINT = "#3a3f47", "#c9ced6"
# Beyond this many positions their tokens would overlap.
_MOST_LABELS = 64


def decode_map(result: DecodeResult, row: int = 0, *, tokenizer: Tokenizer | None = None) -> Figure:
    """Positions across, passes down; colour is the confidence of each candidate at each pass.

    A dot is a commit, and a rectangle is a block: its positions, from the pass that opened it to its last.
    """
    decode = _decoded(result, row)
    plt = _pyplot()
    width, height = max(decode.reach, 1), decode.nfe
    figure, axes = plt.subplots(
        figsize=(min(max(5.0, 0.17 * width + 1.5), 16.0), min(max(2.2, 0.17 * height + 1.1), 12.0)),
        layout="constrained",
    )
    shown = np.ma.masked_invalid(decode.confidence[:, :width])
    edges = (-0.5, width - 0.5, height + 0.5, 0.5)
    image = axes.imshow(shown, cmap="GnBu", vmin=0, vmax=1, aspect="auto", extent=edges, interpolation="none")
    done = np.flatnonzero(decode.commit_step[:width])
    dots = {"s": 14, "facecolor": "white", "edgecolor": _INK, "linewidths": 0.7}
    axes.scatter(done, decode.commit_step[done], gid="commits", zorder=3, **dots)
    following = [*(block.first_pass for block in decode.blocks[1:]), decode.nfe + 1]
    for block, next_pass in zip(decode.blocks, following, strict=True):
        corner = (block.start - 0.5, block.first_pass - 0.5)
        size = (block.size, next_pass - block.first_pass)
        axes.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor=_INK, linewidth=1.0, gid="block"))
    axes.set_ylabel("forward pass")
    _label_positions(axes, decode.tokens, tokenizer, 0, width)
    figure.colorbar(image, ax=axes, label="confidence", shrink=0.8, pad=0.01)
    return _finished(figure, axes)


def signals(
    result: DecodeResult, block: int = 1, row: int = 0, *, tokenizer: Tokenizer | None = None
) -> Figure:
    """What the partition told of each position when it cut a block (from 0), with the boundary that it chose.

    For DepGA: influence I and uncertainty H above, score S below. What is negative somewhere is drawn below.

    Raises:
      ValueError: also if the partition tells no numbers of positions.
    """
    decode = _decoded(result, row)
    check_integer("block", block, 0, len(decode.blocks) - 1)
    cut = decode.blocks[block]
    curves = decode.partition_signals(cut)
    if not curves:
        raise ValueError("this partition tells no numbers of positions: there are no signals to draw")
    # The score's place is below also where it happens to be positive.
    below = {name for name, info in decode.partition.items() if info.ndim == 2 and (info < 0).any()}
    groups = [[n for n in curves if n not in below], [n for n in curves if n in below]]
    groups = [names for names in groups if names]
    plt = _pyplot()
    figure, panels = plt.subplots(
        len(groups), sharex=True, figsize=(8, 1 + 1.5 * len(groups)), layout="constrained", squeeze=False
    )
    width = max(map(len, curves.values()))
    for names, axes in zip(groups, panels[:, 0], strict=True):
        for name in names:
            label, colour = LOOK.get(name, (name, None))
            at = cut.start + np.arange(len(curves[name]))
            axes.plot(at, curves[name], color=colour, marker=".", label=label)
        if set(names) & below:
            axes.axhline(0, color=_INK, linewidth=0.8)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(names), borderpad=0)
        axes.axvspan(cut.start - 0.5, cut.end - 0.5, color=INFLUENCE, alpha=0.08, linewidth=0)
        axes.axvline(cut.end - 0.5, color=_INK, linestyle="--", linewidth=1, gid="boundary")
    panels[0, 0].set_title(f"block {block}: length {cut.size}", loc="left", fontsize=10)
    _label_positions(panels[-1, 0], decode.tokens, tokenizer, cut.start, cut.start + width)
    return _finished(figure, *panels[:, 0])


def conflicts(result: DecodeResult, step: int, row: int = 0, *, tokenizer: Tokenizer | None = None) -> Figure:
    """What the selection told at a pass, from 1: its candidates by confidence, and flagged pairs as arcs.

    For CAP-Decoding the arcs are conflicts. Numbers that it told of positions are drawn as lines. A filled
    mark was committed at this pass. Tokens are those that each position would be committed with.

    Raises:
      ValueError: also if the selection tells neither pairs nor numbers of positions.
    """
    decode = _decoded(result, row)
    check_integer("step", step, 1, decode.nfe)
    pairs, curves = decode.pairs(step), decode.selection_signals(step)
    if not pairs and not curves:
        raise ValueError("this selection tells neither pairs nor numbers of positions: nothing to draw")
    block = decode.block_at(step)
    plt = _pyplot()
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(8, 3.6), layout="constrained")
    _draw_arcs(above, pairs)
    for name, numbers in curves.items():
        above.plot(block.start + np.arange(len(numbers)), numbers, marker=".", label=name)
    confidence = decode.confidence[step - 1]
    candidates = np.flatnonzero(np.isfinite(confidence))
    taken = decode.commit_step[candidates] == step
    below.vlines(candidates, 0, confidence[candidates], color=_FAINT, linewidth=1)
    for chosen, face, label in ((taken, INFLUENCE, "committed"), (~taken, "white", "left open")):
        marks = {"s": 26, "facecolor": face, "edgecolor": INFLUENCE, "label": label, "zorder": 3}
        below.scatter(candidates[chosen], confidence[candidates[chosen]], **marks)
    below.set(ylim=(0, 1.05), ylabel="confidence", xlim=(block.start - 0.5, block.end - 0.5))
    handles = [*above.get_legend_handles_labels()[0], *below.get_legend_handles_labels()[0]]
    look = {"frameon": False, "loc": "lower right", "bbox_to_anchor": (1, 1), "borderpad": 0}
    above.legend(handles=handles, ncols=len(handles), **look)
    counts = ", ".join(f"{len(edges)} {name}" for name, edges in pairs.items())
    above.set_title(f"pass {step}{': ' if counts else ''}{counts}", loc="left", fontsize=10)
    tokens = np.where(np.isfinite(confidence), decode.guess[step - 1], decode.tokens)
    _label_positions(below, tokens, tokenizer, block.start, block.end)
    return _finished(figure, above, below)


def _draw_arcs(axes: Axes, pairs: Mapping[str, np.ndarray]) -> None:
    from matplotlib.patches import Arc

    edges = [(i, j) for flagged in pairs.values() for i, j in flagged.tolist()]
    longest = max((j - i for i, j in edges), default=1)
    for i, j in edges:
        arc = Arc(((i + j) / 2, 0), j - i, 2 * (j - i) / longest, theta1=0, theta2=180, gid=f"{i}-{j}")
        arc.set(edgecolor=CONFLICT, linewidth=1.2, alpha=0.7)
        axes.add_patch(arc)
    if pairs:
        axes.set(ylim=(0, 1.1), yticks=[], ylabel=", ".join(pairs))


def progress(result: DecodeResult, row: int = 0) -> Figure:
    """Block sizes, block by block, and how many tokens each forward pass committed."""
    decode = _decoded(result, row)
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.6), layout="constrained", width_ratios=(2, 3))
    left.bar(range(len(decode.blocks)), [block.size for block in decode.blocks], color=SCORE, width=0.7)
    left.set(xlabel="block", ylabel="positions")
    right.bar(range(1, decode.nfe + 1), decode.commits, color=INFLUENCE, width=0.7)
    right.set(xlabel="forward pass", ylabel="tokens committed")
    mean = decode.commits.mean()
    right.axhline(mean, color=_INK, linewidth=0.8, linestyle="--", gid="mean")
    right.set_title(f"{decode.commits.sum()} tokens, {decode.nfe} passes: {mean:.2f} per pass", fontsize=10)
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
    decode = replay(result, row)
    if decode.nfe == 0:
        raise ValueError(f"row {row} was not decoded: it took no forward pass")
    return decode


def _label_positions(
    axes: Axes, tokens: np.ndarray, tokenizer: Tokenizer | None, begin: int, end: int
) -> None:
    """Tokens below their positions if there is a tokenizer and room, else numbers."""
    if tokenizer is None or end - begin > _MOST_LABELS:
        axes.set_xlabel("position in the answer")
        return
    marks = dict.fromkeys(tokenizer.all_special_tokens, "∎")  # the end of the text, above all: a long word
    bare = [text.strip(" ") for text in spell(tokens, tokenizer)[begin:end]]
    readable = [marks.get(text, text).replace("\n", "↵").replace("$", r"\$") or "·" for text in bare]
    axes.set_xticks(range(begin, end), readable, rotation=90, fontsize=8)


def _finished(figure: Any, *panels: Any) -> Figure:
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    # Closed, a notebook shows the returned figure once and not twice.
    _pyplot().close(figure)
    return figure
