"""How likely is a text? LLaDA's Monte Carlo estimate, and whether greedy decoding would write it.

Of a target of Y tokens, k are masked, k uniform in 1..Y and the positions uniform among all sets of k; then
(Y / k) times the sum of their log-probabilities, given all the rest, is an unbiased estimate of a lower bound
of the target's log-likelihood (Nie et al., *Large Language Diffusion Models*, 2025).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from depcap_jax.decoding.generate import generate_canvas
from depcap_jax.decoding.model import DiffusionLM
from depcap_jax.decoding.policy import check_integer
from depcap_jax.decoding.recipes import recipe
from depcap_jax.text.batching import at_least, doubling

_T = TypeVar("_T")

_SHORTEST_CANVAS, _SHORTEST_TARGET = 32, 8


@dataclasses.dataclass(frozen=True)
class Pair:
    """A target and what stands before it, in ids."""

    prefix: tuple[int, ...]
    target: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of both."""
        return len(self.prefix) + len(self.target)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A log-likelihood in nats."""

    value: float
    standard_error: float
    """Of the Monte Carlo mean; 0 where nothing is random, NaN where one sample cannot tell."""


def log_likelihoods(
    model: DiffusionLM,
    pairs: Sequence[Pair],
    *,
    samples: int = 128,
    batch_size: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Estimate]:
    """The log-likelihood of each target after its prefix.

    A pair's estimate depends on the seed, the pair and the number of samples, not on the other pairs.
    `progress` is told how many samples are done, of how many.

    Raises:
      ValueError: if a pair has no target or does not fit into the model's context.
    """
    check_integer("samples", samples, 1)
    check_integer("batch_size", batch_size, 1)
    _check(pairs, model.config.max_length)
    # Copies of a one-token target are all alike.
    jobs = [
        (index, masked)
        for index, pair in enumerate(pairs)
        for masked in _masks(pair, samples if len(pair.target) > 1 else 1, seed)
    ]
    values: list[list[tuple[int, float]]] = [[] for _ in pairs]
    done = 0
    for chunk, canvas, lengths, starts, width in _chunks(model, pairs, jobs, batch_size):
        hidden = np.zeros((batch_size, width), bool)
        for row, (_, masked) in zip(hidden, chunk, strict=False):
            row[: len(masked)] = masked
        sums = np.asarray(_masked_sums(model, canvas, lengths, starts, hidden)).tolist()
        for (index, masked), value in zip(chunk, sums, strict=False):
            count = int(masked.sum())
            values[index].append((count, value * len(masked) / count))
        done += len(chunk)
        if progress is not None:
            progress(done, len(jobs))
    return [_estimate(pair, drawn) for pair, drawn in zip(pairs, values, strict=True)]


def are_greedy(model: DiffusionLM, pairs: Sequence[Pair], *, batch_size: int = 8) -> list[bool]:
    """Whether one-by-one decoding, the most confident position first, writes exactly the target."""
    _check(pairs, model.config.max_length)
    greedy = [False] * len(pairs)
    jobs = [(index, None) for index in range(len(pairs))]
    for chunk, canvas, lengths, starts, span in _chunks(model, pairs, jobs, batch_size):
        position = np.arange(canvas.shape[1])
        is_open = (position >= starts[:, None]) & (position < lengths[:, None])
        config = recipe("vanilla", block_length=span, gen_length=span, stop_at_eos=False)
        written = np.asarray(generate_canvas(model, canvas, is_open, lengths, config=config).tokens)
        for row, (index, _) in zip(written, chunk, strict=False):
            target = pairs[index].target
            greedy[index] = tuple(row[: len(target)].tolist()) == target
    return greedy


def _check(pairs: Sequence[Pair], context: int) -> None:
    for index, pair in enumerate(pairs):
        if not pair.target:
            raise ValueError(f"pair {index} has an empty target")
        if pair.length > context:
            raise ValueError(f"pair {index} has {pair.length} tokens; the model's context has {context}")


def _masks(pair: Pair, samples: int, seed: int) -> Iterator[np.ndarray]:
    """[Y] bool for each sample; the numbers of masked tokens are spread evenly over 1..Y."""
    content = np.asarray([len(pair.prefix), *pair.prefix, *pair.target], np.int64).tobytes()
    digest = int.from_bytes(hashlib.sha256(content).digest()[:8])
    rng = np.random.default_rng((seed, digest))
    length, offset = len(pair.target), rng.random()
    for sample in range(samples):
        count = 1 + int((offset + sample / samples) % 1.0 * length)
        masked = np.zeros(length, bool)
        masked[rng.choice(length, min(count, length), replace=False)] = True
        yield masked


def _shape(pair: Pair, model: DiffusionLM) -> tuple[int, int]:
    """The canvas and the target's width that a pair is padded to: doubling, so that compilations are few."""
    canvas = at_least(pair.length, doubling(_SHORTEST_CANVAS, model.config.max_length))
    return canvas, at_least(len(pair.target), doubling(_SHORTEST_TARGET, canvas))


def _chunks(
    model: DiffusionLM, pairs: Sequence[Pair], jobs: Sequence[tuple[int, _T]], rows: int
) -> Iterator[tuple[list[tuple[int, _T]], np.ndarray, np.ndarray, np.ndarray, int]]:
    """Jobs (a pair's index first) of one shape, the largest first, and what they are computed on.

    That is ids [B, T], lengths [B], where the targets start [B], and Y; copies of the last pair fill up rows.
    """
    shapes = [_shape(pair, model) for pair in pairs]
    for shape in sorted(set(shapes), reverse=True):
        same = [job for job in jobs if shapes[job[0]] == shape]
        for first in range(0, len(same), rows):
            chunk = same[first : first + rows]
            filled = [pairs[index] for index, _ in (*chunk, *[chunk[-1]] * (rows - len(chunk)))]
            canvas = np.full((rows, shape[0]), model.config.pad_token_id, np.int32)
            for row, pair in zip(canvas, filled, strict=True):
                row[: pair.length] = [*pair.prefix, *pair.target]
            lengths = np.asarray([pair.length for pair in filled], np.int32)
            starts = np.asarray([len(pair.prefix) for pair in filled], np.int32)
            yield chunk, canvas, lengths, starts, shape[1]


@jax.jit
def _masked_sums(
    model: DiffusionLM, tokens: jax.Array, lengths: jax.Array, starts: jax.Array, masked: jax.Array
) -> jax.Array:
    """[B] the summed log-probabilities of the target's masked tokens, `masked` being [B, Y]."""
    canvas, width = tokens.shape[1], masked.shape[1]
    position = starts[:, None] + jnp.arange(width)[None]
    inside = jnp.minimum(position, canvas - 1)
    truth = jnp.take_along_axis(tokens, inside, axis=1)
    rows = jnp.arange(len(tokens))[:, None]
    noisy = tokens.at[rows, jnp.where(masked, position, canvas)].set(model.config.mask_token_id, mode="drop")
    hidden, _ = model.hidden(noisy, lengths=lengths)
    source = model.source(inside)
    logits = model.logits(jnp.take_along_axis(hidden, source[..., None], axis=1))  # [B, Y, V]
    chosen = jnp.take_along_axis(logits, truth[..., None], axis=2)[..., 0]
    log_probability = chosen - jax.nn.logsumexp(logits, axis=2)
    return jnp.sum(jnp.where(masked, log_probability, 0.0), axis=1)


def _estimate(pair: Pair, samples: Sequence[tuple[int, float]]) -> Estimate:
    """The mean of samples (masked tokens, value), and its error.

    Counts are spread evenly, so only what neighbours in the order of counts differ by is chance: the
    variance of the values as a whole would be several times too large.
    """
    values = np.asarray([value for _, value in sorted(samples, key=lambda sample: sample[0])])
    if len(pair.target) == 1:
        return Estimate(float(values[0]), 0.0)
    chance = np.sum(np.diff(values) ** 2) / (2 * (len(values) - 1)) if len(values) > 1 else np.nan
    return Estimate(float(values.mean()), float(np.sqrt(chance / len(values))))
