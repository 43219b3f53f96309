"""The loop once more, in plain Python and float64 NumPy: one row, no batching, no fixed shapes.

It is here to be read beside the paper and to be stepped through, and the tests hold `generate` to it, token
for token and pass for pass. It shares with the compiled loop only the model and the policies' settings.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.decoding.caching import BlockCache, NoCache
from depcap_jax.decoding.compute.prediction import Reads
from depcap_jax.decoding.field import plain
from depcap_jax.decoding.field.windows import AttentionBlocks
from depcap_jax.decoding.model import AttentiveLM, DiffusionLM
from depcap_jax.decoding.partition import AdaBlocks, DepGABlocks, FixedBlocks
from depcap_jax.decoding.recipes import DecodeConfig
from depcap_jax.decoding.select import ConfidenceThreshold, ConflictFree, FactorThreshold, TopOne


@dataclasses.dataclass
class EagerResult:
    """What `decode_eagerly` returns: the fields of `DecodeResult`, for one row."""

    tokens: list[int]
    nfe: int
    block_sizes: list[int]
    commit_step: list[int]


def decode_eagerly(model: DiffusionLM, prompt: Sequence[int], config: DecodeConfig) -> EagerResult:
    """Decodes one prompt without sampling; ends early at an end-of-text token if the config says so."""
    if config.sampling is not None:
        raise ValueError("decode_eagerly takes the most likely token only; config.sampling must be None")
    start, end = len(prompt), len(prompt) + config.gen_length
    tokens = np.array([*prompt, *[model.config.mask_token_id] * config.gen_length])
    still_open = np.arange(end) >= start
    commit_step = np.zeros(end, int)
    block_sizes: list[int] = []
    nfe, t, block_end, at_first, previous = 0, start, start, 0, None

    cache = _EagerCache(model, config, start, end)
    while still_open.any() and not (config.stop_at_eos and _ended(model, tokens[start:], still_open[start:])):
        at_start = not still_open[:block_end].any()
        t = int(np.argmax(still_open)) if at_start else t
        committed = int((commit_step > 0).sum())
        logits, weights = cache.look(tokens, t, block_end, at_start, committed)  # of [t, end)
        log_p = _log_softmax(logits)
        nfe += 1
        choosable = log_p[:, : model.config.vocab_size].copy()
        choosable[:, model.config.mask_token_id] = -np.inf
        best_token = choosable.argmax(axis=-1)
        confidence = np.exp(np.take_along_axis(log_p, best_token[:, None], axis=-1)[:, 0])
        if at_start:
            ahead = plain.Sight(weights, still_open, t, end - t, 0)
            length, previous = _block_length(config, log_p, best_token, confidence, t, previous, ahead)
            block_end = t + length
            block_sizes.append(length)
            at_first = int(still_open[t:block_end].sum())
        candidates = [i for i in range(block_end - t) if still_open[t + i]]
        best = max(candidates, key=lambda i: (confidence[i], -i))
        sight = plain.Sight(weights, still_open, t, block_end - t, at_first)
        taken = plain.select(config.select, confidence, candidates, sight)
        if taken is None:
            taken = [best, *_select(config, log_p, best_token, confidence, candidates)]
        for i in set(taken or [best]):
            tokens[t + i], still_open[t + i], commit_step[t + i] = best_token[i], False, nfe
    tokens[still_open] = model.config.pad_token_id
    return EagerResult(tokens[start:].tolist(), nfe, block_sizes, commit_step[start:].tolist())


class _EagerCache:
    """Runs the model over the canvas, and remembers the keys and values that a pass may not renew."""

    def __init__(self, model: DiffusionLM, config: DecodeConfig, answer_start: int, length: int):
        if not isinstance(config.cache, (NoCache, BlockCache)):
            raise TypeError(f"decode_eagerly does not know the cache {type(config.cache).__name__}")
        self.model, self.policy = model, config.cache
        self.window, self.answer_start = config.sizes.window, answer_start
        memory = config.cache.init(model, 1, length)
        self.kv = None if memory is None else memory.kv
        policies = (config.partition, config.select)
        self.layers = max(getattr(policy, "reads", Reads()).attention for policy in policies)
        self.passes = self.refreshes = self.committed_then = 0

    def look(
        self, tokens: np.ndarray, t: int, block_end: int, at_start: bool, committed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits that predict [t, end of the canvas), and the attention behind them if a policy reads it.

        Beyond a dual cache's span they are stale.
        """
        position = np.arange(len(tokens))
        begin, end = 0, len(tokens)
        if isinstance(self.policy, BlockCache):
            begin, end = self._span(self.policy, t, block_end, end, at_start, committed)
        renewed = (position >= begin) & (position < end)
        logits, self.kv, weights = _forward(self.model, tokens[None], self.kv, renewed[None], self.layers)
        source = np.asarray(self.model.source(jnp.asarray(position[t:])))
        return np.asarray(logits[0], np.float64)[source], np.asarray(weights[0])[source]

    def _span(
        self, rule: BlockCache, t: int, block_end: int, end: int, at_start: bool, committed: int
    ) -> tuple[int, int]:
        """What this pass recomputes; `committed` tokens stand in the answer."""
        first = self.refreshes == 0
        refresh = 0 < int(rule.refresh_every) <= self.passes
        if rule.refresh_after:
            refresh |= first or committed - self.committed_then >= rule.refresh_after
        else:
            refresh |= at_start
        self.passes += 1
        if refresh:
            whole = self.refreshes % rule.prompt_every == 0
            self.passes, self.committed_then, self.refreshes = 1, committed, self.refreshes + 1
            return (0, end) if whole else (self.answer_start - rule.margin, end)
        if rule.keep_suffix:
            end = t + self.window if at_start else block_end
        return t - rule.margin, end + rule.margin_after


@functools.partial(jax.jit, static_argnames="layers")
def _forward(
    model: DiffusionLM, tokens: jax.Array, kv: Any, renewed: jax.Array, layers: int
) -> tuple[jax.Array, Any, jax.Array]:
    """Logits, keys and values, and the attention [1, T, T] of the last `layers` layers; 0: nothing of it."""
    write = None if kv is None else renewed
    if layers:
        everywhere = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        look = cast(AttentiveLM, model).hidden_and_attention
        hidden, kv, weights = look(tokens, everywhere, layers, cache=kv, write=write)
    else:
        hidden, kv = model.hidden(tokens, cache=kv, write=write)
        weights = jnp.zeros((*tokens.shape, 0), jnp.float32)
    return model.logits(hidden), kv, weights


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    z = logits - logits.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def _ended(model: DiffusionLM, answer: np.ndarray, still_open: np.ndarray) -> bool:
    settled = int(np.argmax(still_open))
    return bool(np.isin(answer[:settled], model.config.eos_token_ids).any())


def _block_length(
    config: DecodeConfig,
    log_p: np.ndarray,
    token: np.ndarray,
    confidence: np.ndarray,
    t: int,
    previous: Any,
    ahead: plain.Sight | None = None,
) -> tuple[int, Any]:
    """The next block's length, and what the partition remembers of this block start."""
    rule, remaining = config.partition, len(log_p)
    if isinstance(rule, FixedBlocks):
        return min(rule.block_length, remaining), None
    if isinstance(rule, AdaBlocks):
        window = min(config.gen_length // 4, remaining)
        delimiters = [i for i in range(window) if token[i] in rule.delimiter_ids]
        best = max(delimiters, key=lambda i: (confidence[i], -i), default=None)
        if best is not None and confidence[best] >= rule.delimiter_threshold:
            return best + 1, None
        return min(rule.default_block_length, remaining), None
    if isinstance(rule, DepGABlocks):
        window = min(2 * rule.l_max, remaining)
        compressed = {t + i: _compress(log_p[i], rule.top_k_cache) for i in range(window)}
        if previous is None:
            return min(rule.l_min, remaining), compressed
        width = min(rule.l_max, remaining)
        influence = np.array([_kl(compressed[t + i], previous[t + i]) for i in range(width)])
        p = np.exp(log_p[:width])
        uncertainty = -(p * np.where(p > 0, log_p[:width], 0.0)).sum(axis=-1)
        score = _scaled(influence) - float(rule.lambda_u) * _scaled(uncertainty)
        ends = np.flatnonzero((score < 0) & (uncertainty >= float(rule.certainty_floor)))
        length = int(ends[0]) if len(ends) else width
        return min(max(length, rule.l_min), rule.l_max, remaining), compressed
    if isinstance(rule, AttentionBlocks):
        assert ahead is not None
        closure = plain.closures(rule, ahead._replace(size=min(rule.l_max, remaining)))
        return int(np.flatnonzero(closure >= closure.max() - float(rule.slack))[-1]) + 1, None
    raise TypeError(f"decode_eagerly does not know the partition {type(rule).__name__}")


def _compress(log_p: np.ndarray, k: int) -> tuple[dict[int, float], float]:
    """The k most likely tokens with their log-probabilities, and the floor of all others."""
    k = min(k, len(log_p))
    order = np.argsort(-log_p, kind="stable")
    tail = max(np.exp(log_p[order[k:]]).sum(), 1e-12)
    return {int(v): float(log_p[v]) for v in order[:k]}, float(np.log(tail) - np.log(max(len(log_p) - k, 1)))


def _kl(current: tuple[dict[int, float], float], previous: tuple[dict[int, float], float]) -> float:
    (kept, _), (before, floor) = current, previous
    pairs = [(lp, before.get(v, floor)) for v, lp in kept.items() if lp > -np.inf]
    divergence, terms = (sum(np.exp(lp) * (lp - s * lq) for lp, lq in pairs) for s in (1, -1))
    # The model's own numbers are float32: less than their rounding is nothing.
    return divergence if abs(divergence) > 2.0**-20 * abs(terms) else 0.0


def _scaled(x: np.ndarray) -> np.ndarray:
    """Centred mean of 3 with zeros outside, then (x - median) / (q3 - q1)."""
    padded = np.pad(x, 1)
    x = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    last, ordered = len(x) - 1, np.sort(x)
    return (x - ordered[last // 2]) / max(ordered[3 * last // 4] - ordered[last // 4], 1e-15)


def _select(
    config: DecodeConfig, log_p: np.ndarray, token: np.ndarray, confidence: np.ndarray, candidates: list[int]
) -> list[int]:
    """What may be committed beside the most confident position."""
    rule = config.select
    ranked = sorted(candidates, key=lambda i: (-confidence[i], i))
    if isinstance(rule, TopOne):
        return []
    if isinstance(rule, ConfidenceThreshold):
        return [i for i in ranked if confidence[i] >= float(rule.threshold)]
    if isinstance(rule, FactorThreshold):
        taken = []
        for n, i in enumerate(ranked, start=1):
            if confidence[i] < 1 - float(rule.factor) / (n + 1):
                break
            taken.append(i)
        return taken
    if isinstance(rule, ConflictFree):

        def conflict(i: int, j: int) -> bool:
            return log_p[i, token[j]] + log_p[j, token[i]] > float(rule.gamma)

        pool = [i for i in ranked if confidence[i] >= float(rule.tau_low)]
        taken = [i for i in pool if confidence[i] >= float(rule.tau_high)]
        pool = [i for i in pool if i not in taken and not any(conflict(i, j) for j in taken)]
        while pool:
            pick = pool.pop(0)
            taken.append(pick)
            pool = [i for i in pool if not conflict(i, pick)]
        return taken
    raise TypeError(f"decode_eagerly does not know the selection {type(rule).__name__}")
