"""What is gained by fewer passes, and what is lost: the best runs of many, and accuracy under parallelism."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from depcap_jax.evaluation.engine import Run

_ALPHA = 3.0
_MOST_LOST = 5.0


def frontier(runs: Sequence[Run]) -> list[Run]:
    """The runs that no other one beats: none is as right with fewer passes, or righter with as many.

    Of runs that are the same in both, all are kept. They come in the order of their passes.
    """
    best: list[Run] = []
    for run in sorted(runs, key=lambda run: (run.summary["nfe"], -run.summary["accuracy"])):
        same = best and _place(best[-1]) == _place(run)
        if not best or same or run.summary["accuracy"] > best[-1].summary["accuracy"]:
            best.append(run)
    return best


def accuracy_under_parallelism(points: Iterable[tuple[float, float]], best: float) -> float:
    """AUP (Qian et al., arXiv 2601.07568): the area under accuracy over tokens per forward pass.

    With the points (r_1, y_1), (r_2, y_2), ... by ascending r, less those with y_i < y_1 - 5,

        AUP = r_1 y_1 + sum over i > 1 of (r_i - r_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2,
        W(y) = min(exp(-3 (1 - y / y_max)), 1).

    It is large where a pass commits many tokens at nearly the best accuracy; it knows no seconds. A family of
    one point has r_1 y_1.

    Args:
      points: tokens per forward pass and accuracy in percent, of one family of decoders.
      best: y_max, the best accuracy of all families that are compared, in percent.

    Raises:
      ValueError: if there is no point.
    """
    ordered = sorted(points, key=lambda point: (point[0], -point[1]))
    if not ordered:
        raise ValueError("accuracy under parallelism needs at least one point")
    (first, slowest), *_ = ordered
    kept = [(r, y) for r, y in ordered if y >= slowest - _MOST_LOST]

    def weighted(y: float) -> float:
        return y * min(math.exp(-_ALPHA * (1 - y / best)), 1.0) if best else 0.0

    steps = itertools.pairwise(kept)
    return first * slowest + sum((r - s) * (weighted(y) + weighted(z)) / 2 for (s, z), (r, y) in steps)


def score_families(runs: Sequence[Run]) -> dict[tuple[str, str], float]:
    """The accuracy under parallelism for each recipe and cache; the best accuracy is that of all runs."""
    best = max((100 * run.summary["accuracy"] for run in runs), default=0.0)
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for run in runs:
        point = run.summary["tokens_per_pass"], 100 * run.summary["accuracy"]
        points.setdefault(family(run), []).append(point)
    return {name: accuracy_under_parallelism(each, best) for name, each in points.items()}


def family(run: Run) -> tuple[str, str]:
    """The recipe and the cache of a run: what it shares with those that differ in a threshold alone."""
    return run.decoder.recipe, run.decoder.cache


def _place(run: Run) -> tuple[float, float]:
    return run.summary["nfe"], run.summary["accuracy"]
