"""The rules that read attention once more, in plain Python and NumPy, for the eager twin of the loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from depcap_jax.decoding.field.attending import CLAD, DAPD, DAWN
from depcap_jax.decoding.field.windows import AttentionBlocks


class Sight(NamedTuple):
    """What the positions from a block's start on look at, in one row."""

    weights: np.ndarray  # [n, T]
    open: np.ndarray  # [T] bool
    start: int  # where the block begins on the canvas
    size: int  # positions of the block
    at_first: int  # how many of them were open at the block's first pass

    def within(self) -> np.ndarray:
        """[size, size]: the block's own positions, none of which looks at itself."""
        own = self.weights[: self.size, self.start : self.start + self.size].astype(np.float64)
        return own * (1 - np.eye(self.size))


def select(rule: Any, c: np.ndarray, candidates: list[int], sight: Sight) -> list[int] | None:
    """What a rule takes of the candidates with confidences c; None if it is none of these."""
    rules = {CLAD: _clad, DAPD: _dapd, DAWN: _dawn}
    return rules[type(rule)](rule, c, candidates, sight) if type(rule) in rules else None


def _clad(rule: CLAD, c: np.ndarray, candidates: list[int], sight: Sight) -> list[int]:
    sure = [i for i in candidates if c[i] >= float(rule.threshold)]
    clusters = [run.tolist() for run in np.split(sure, np.flatnonzero(np.diff(sure) > 1) + 1)]
    count = len(clusters)
    if count == 1:
        return clusters[0]
    a = np.maximum(sight.within(), sight.within().T)
    score = np.array([[max(a[i, q].mean() for i in p) for q in clusters] for p in clusters])
    score = np.maximum(score, score.T) * (1 - np.eye(count))
    usual, closest = score.sum(axis=1) / (count - 1), (score - np.eye(count)).argmax(axis=1)
    waits = set()
    for p, q in enumerate(closest):
        least = 1.2 / sight.size if count == 2 else max(usual[p], usual[q])
        if p < q and closest[q] == p and score[p, q] >= least:
            waits.add(q if len(clusters[p]) >= len(clusters[q]) else p)
    return [i for p, run in enumerate(clusters) if p not in waits for i in run]


def _dapd(rule: DAPD, c: np.ndarray, candidates: list[int], sight: Sight) -> list[int]:
    left = len(candidates) / sight.at_first
    if left < float(rule.switch_ratio):
        return [i for i in candidates if c[i] > float(rule.threshold)]
    a = sight.within()
    score = (a + a.T) / 2
    degree = {i: score[i, candidates].sum() for i in candidates}
    tau = float(rule.tau_min) + (float(rule.tau_max) - float(rule.tau_min)) * (1 - left)
    return _greedy(sorted(candidates, key=lambda i: (-degree[i] * c[i], i)), score > tau)


def _dawn(rule: DAWN, c: np.ndarray, candidates: list[int], sight: Sight) -> list[int]:
    rows, end = sight.weights[: sight.size], sight.start + sight.size
    middle = np.sort(rows, axis=0)[(sight.size - 1) // 2]
    edges = (np.where(middle > float(rule.tau_sink), 0, rows) >= float(rule.tau_edge)) & (rows > 0)
    known = np.flatnonzero(~sight.open)
    anchors = [k for k in known if not sight.start <= k < end or c[k - sight.start] >= float(rule.threshold)]
    sure = [i for i in candidates if c[i] >= float(rule.threshold)]
    induced = [i for i in candidates if c[i] >= float(rule.tau_induce) and edges[i, anchors].any()]
    settled, own = sorted({*sure, *induced}), edges[:, sight.start : end]
    rest = [i for i in candidates if i not in settled and c[i] >= float(rule.tau_low)]
    rest = [i for i in rest if not own[i, settled].any()]
    return settled + _greedy(sorted(rest, key=lambda i: (-c[i], i)), own | own.T)


def _greedy(order: list[int], conflict: np.ndarray) -> list[int]:
    taken: list[int] = []
    for i in order:
        if not conflict[i, taken].any():
            taken.append(i)
    return taken


def closures(rule: AttentionBlocks, sight: Sight) -> np.ndarray:
    """The closure of each length from 1 on, up to `sight.size`."""
    position, closure = np.arange(len(sight.open)), []
    for x in range(1, sight.size + 1):
        block = (position >= sight.start) & (position < sight.start + x)
        itself, known, ahead = (
            sight.weights[:x, part].astype(np.float64).sum()
            for part in (block, ~block & ~sight.open, ~block & sight.open)
        )
        closed = itself + float(rule.alpha) * known
        closure.append(closed / (closed + ahead))
    return np.array(closure)
