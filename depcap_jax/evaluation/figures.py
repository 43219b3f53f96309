"""Plots of tables and sweeps, as PNG and SVG."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depcap_jax.decoding.recipes import CACHES
from depcap_jax.evaluation.frontier import frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from depcap_jax.evaluation.engine import Run

_MARKERS = dict(zip(CACHES, "os^DvPp*h", strict=False))
_OTHER_MARKER = "X"  # of a decoder with a cache of one's own


def require_matplotlib() -> None:
    """Raises ModuleNotFoundError, naming the extra, if there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            'plots need matplotlib: pip install "depcap_jax[plot]"; or leave them out with --no-plots'
        )


def plot_table(runs: Sequence[Run], title: str) -> Figure:
    """Accuracy and forward passes against tokens per second; one colour per decoder, one marker per cache."""
    figure, axes = _panels(2, title)
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(run.decoder.label for run in runs))
    for run in runs:
        look: dict[str, Any] = {
            "color": f"C{labels.index(run.decoder.label) % 10}",
            "marker": _MARKERS.get(run.decoder.cache, _OTHER_MARKER),
            "linestyle": "",
        }
        speed = run.summary["tokens_per_second"]
        axes[0].plot([speed], [100 * run.summary["accuracy"]], **look)
        axes[1].plot([speed], [run.summary["nfe"]], **look)
    for axis, name in zip(axes, ("accuracy, %", "forward passes per problem"), strict=True):
        axis.set_xlabel("tokens per second")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    look = {"linestyle": "", "markersize": 6}
    entries = [
        Line2D([], [], color=f"C{i % 10}", marker="o", label=label, **look) for i, label in enumerate(labels)
    ]
    caches = dict.fromkeys(run.decoder.cache for run in runs)
    if len(caches) > 1:
        entries += [
            Line2D([], [], color="0.4", marker=_MARKERS.get(c, _OTHER_MARKER), label=f"cache: {c}", **look)
            for c in caches
        ]
    figure.legend(handles=entries, loc="outside right upper", fontsize="small")
    return figure


def plot_frontier(runs: Sequence[Run], title: str) -> Figure:
    """Accuracy against forward passes; the runs that no other one beats are named, the others grey."""
    figure, (axes,) = _panels(1, title)
    figure.set_size_inches(9, 5)
    best = frontier(runs)
    several_caches = len({run.decoder.cache for run in runs}) > 1

    def draw(run: Run, **look: Any) -> None:
        summary, marker = run.summary, _MARKERS.get(run.decoder.cache, _OTHER_MARKER)
        error = 100 * summary["accuracy_standard_error"]
        point = [summary["nfe"]], [100 * summary["accuracy"]]
        axes.errorbar(*point, yerr=[error], marker=marker, linestyle="", elinewidth=0.8, **look)

    for run in runs:
        if run not in best:
            draw(run, color="0.72", markersize=4)
    axes.plot(
        [run.summary["nfe"] for run in best],
        [100 * run.summary["accuracy"] for run in best],
        color="C0",
        drawstyle="steps-post",
    )
    for index, run in enumerate(best):
        cache = f" ({run.decoder.cache})" if several_caches else ""
        label = f"{index + 1}. {run.decoder.label}{cache}"
        draw(run, color=f"C{index % 10}", markersize=7, label=label)
        where = run.summary["nfe"], 100 * run.summary["accuracy"]
        axes.annotate(str(index + 1), where, xytext=(0, 7), textcoords="offset points", ha="center")
    axes.set_xlabel("forward passes per problem")
    axes.set_ylabel("accuracy, %")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small", title="not beaten")
    return figure


def plot_sweep(runs: Sequence[tuple[str, Any, Run]], title: str) -> Figure:
    """One panel per varied setting: accuracy on the left axis, tokens per second on the right."""
    names = list(dict.fromkeys(name for name, _, _ in runs))
    figure, axes = _panels(len(names), title)
    for axis, name in zip(axes, names, strict=True):
        points = [(value, run.summary) for varied, value, run in runs if varied == name]
        # Evenly spaced: what is swept may double from point to point, or be a name.
        where = range(len(points))
        axis.plot(where, [100 * s["accuracy"] for _, s in points], "o-", color="C0", label="accuracy, %")
        axis.set_xticks(where, [str(value) for value, _ in points])
        axis.set_xlabel(name)
        axis.set_ylabel("accuracy, %", color="C0")
        right = axis.twinx()
        right.plot(where, [s["tokens_per_second"] for _, s in points], "s--", color="C1")
        right.set_ylabel("tokens per second", color="C1")
        axis.grid(alpha=0.3)
    return figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Writes STEM.png and STEM.svg."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, bbox_inches="tight")
    return paths


def _panels(count: int, title: str) -> tuple[Figure, list[Axes]]:
    require_matplotlib()
    from matplotlib.figure import Figure

    # Without pyplot: no window system is touched and nothing is kept open.
    figure = Figure(figsize=(4.5 * count + 1.5, 3.6), layout="constrained")
    figure.suptitle(title)
    return figure, [figure.add_subplot(1, count, index + 1) for index in range(count)]
