"""Policies that nobody here knows: with a memory, with reads, asked on every turn, traced like ours."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import small_model

import depcap_jax as dc
from depcap_jax.inspect.replay import replay

GEN_LENGTH = 24
LENGTHS = np.array([5, 12])
PROMPTS = np.random.default_rng(3).integers(0, 500, (2, 16))
FIXED: dict[str, Any] = {"gen_length": GEN_LENGTH, "stop_at_eos": False}


@dc.policy
class UntilFog:
    """A block ends before the first position whose entropy exceeds `fog`."""

    longest: int = dc.setting(default=8, low=1, doc="longest block")
    fog: float | jax.Array = dc.setting(default=5.0, low=0, doc="entropy, in nats, that ends a block")

    reads = dc.Reads(entropy=True)

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(1, min(self.longest, gen_length), min(self.longest, gen_length))

    def init(self, batch: int, gen_length: int) -> None:
        return None

    def __call__(self, prediction, start, remaining, memory):
        foggy = prediction.entropy > self.fog
        clear = dc.numerics.first(foggy)
        length = jnp.clip(clear, 1, jnp.minimum(self.longest, remaining))
        return length, None, {"entropy": prediction.entropy, "foggy": jnp.sum(foggy, axis=1)}


@dc.policy
class Patient:
    """Commits what was the best guess on two passes in a row; remembers the guesses of the whole answer."""

    reads = dc.Reads(top_k=2, pairs=True)

    def init(self, batch: int, gen_length: int) -> jax.Array:
        return jnp.full((batch, gen_length), -1, jnp.int32)

    def __call__(self, prediction, candidates, start, memory):
        rows = jnp.arange(len(start))[:, None]
        position = start[:, None] + jnp.arange(candidates.shape[1], dtype=jnp.int32)[None]
        before = memory.at[rows, position].get(mode="fill", fill_value=-1)
        stable = candidates & (before == prediction.token)
        memory = memory.at[rows, jnp.where(candidates, position, memory.shape[1])].set(
            prediction.token, mode="drop"
        )
        best, second = jnp.moveaxis(
            prediction.top.log_p, -1, 0
        )  # just what it reads, also while it is traced
        margin = best - second
        likely = (prediction.pairs > -4.0) & candidates[:, :, None] & candidates[:, None, :]
        return stable, memory, {"margin": margin, "likely": likely}


@pytest.fixture(scope="module")
def result() -> dc.DecodeResult:
    config = dc.DecodeConfig(partition=UntilFog(), select=Patient(), **FIXED)
    return dc.generate(small_model("llada"), PROMPTS, LENGTHS, config=config, trace=True)


def by_hand(result: dc.DecodeResult, row: int) -> None:
    """Patient's rule replayed from the guesses that the trace holds."""
    seen = replay(result, row)
    last = np.full(GEN_LENGTH, -1)
    for step in range(1, seen.nfe + 1):
        guess, c = seen.guess[step - 1], seen.confidence[step - 1]
        stable = (guess >= 0) & (guess == last)
        stable[np.nanargmax(c)] = True  # what the loop takes anyway
        np.testing.assert_array_equal(seen.commit_step == step, stable)
        last = np.where(guess >= 0, guess, last)


def test_a_selection_has_a_memory(result):
    for row in range(2):
        by_hand(result, row)
    assert int(result.nfe.max()) < GEN_LENGTH, "some pass is to commit more than one token"


def test_what_they_tell_is_recorded_under_their_names(result):
    seen = replay(result, 1)
    assert set(seen.partition) == {"entropy", "foggy"}
    assert set(seen.select) == {"likely", "margin"}
    for block in seen.blocks:
        entropy = seen.partition_signals(block)["entropy"]
        ends = np.flatnonzero(entropy > 5.0)
        assert block.size == min(max(ends[0] if len(ends) else 8, 1), 8, GEN_LENGTH - block.start)
        assert seen.facts(block.first_pass)["foggy"] >= len(ends)
    margin = seen.selection_signals(1)["margin"]
    assert len(margin) == seen.blocks[0].size
    assert (margin >= 0).all()
    assert all(i < j for i, j in seen.pairs(1)["likely"])


def test_they_are_plotted_and_shown_in_the_page(result):
    pytest.importorskip("matplotlib", reason="needs the extra plot").use("agg")
    from depcap_jax import plots, viewer

    seen = replay(result, 1)
    (axes,) = plots.signals(result, 1, 1).axes
    (curve,) = [line for line in axes.lines if line.get_label() == "entropy"]
    np.testing.assert_array_equal(curve.get_ydata(), seen.partition_signals(seen.blocks[1])["entropy"])
    above, _ = plots.conflicts(result, 1, 1).axes
    (curve,) = [line for line in above.lines if line.get_label() == "margin"]
    np.testing.assert_array_equal(curve.get_ydata(), seen.selection_signals(1)["margin"])
    assert {patch.get_gid() for patch in above.patches} == {f"{i}-{j}" for i, j in seen.pairs(1)["likely"]}
    page = viewer.page(result, row=1)
    for name in ("entropy", "foggy", "margin", "likely"):
        assert f'"{name}":' in page


@dc.policy
class Sliding:
    """DSB's window: `size` positions, and as many more as were committed; asked on every turn."""

    size: int = dc.setting(default=6, low=1, doc="positions of the first window")

    slides = True

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(1, gen_length, gen_length)

    def init(self, batch: int, gen_length: int) -> jax.Array:
        return jnp.zeros(batch, jnp.int32)

    def __call__(self, prediction, start, remaining, memory):
        # A window ends `size` and all commits so far behind the answer's start; memory counts the calls.
        end = self.size + memory
        return jnp.clip(end - start, 1, remaining), memory + 1, {"end": end}


@pytest.mark.parametrize("cache", [dc.NoCache(), pytest.param(dc.PrefixCache(), marks=pytest.mark.compiler)])
def test_a_partition_may_be_asked_on_every_turn(cache):
    """With one commit per pass, the window [first open, size + passes) slides by one each time."""
    config = dc.DecodeConfig(partition=Sliding(), select=dc.TopOne(), cache=cache, **FIXED)
    done = dc.generate(small_model("llada"), PROMPTS, LENGTHS, config=config, trace=True)
    for row in range(2):
        seen = replay(done, row)
        assert seen.nfe == GEN_LENGTH == len(seen.blocks)
        is_open = np.ones(GEN_LENGTH, bool)
        for step in range(1, seen.nfe + 1):
            first, end = int(np.argmax(is_open)), min(6 + step - 1, GEN_LENGTH)
            window = is_open & (np.arange(GEN_LENGTH) < max(end, first + 1))
            np.testing.assert_array_equal(seen.guess[step - 1] >= 0, window)
            is_open[seen.commit_step == step] = False
    alone = dc.generate(small_model("llada"), PROMPTS[1:], LENGTHS[1:], config=config)
    np.testing.assert_array_equal(alone.tokens[0], done.tokens[1])


@dc.policy
class ByGuess:
    """A window that slides and whose reach hangs on the model's guesses ahead."""

    slides = True

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(1, gen_length, gen_length)

    def init(self, batch: int, gen_length: int) -> None:
        return None

    def __call__(self, prediction, start, remaining, memory):
        inside = jnp.arange(prediction.token.shape[1], dtype=jnp.int32)[None] < remaining[:, None]
        return 3 + jnp.sum(jnp.where(inside, prediction.token, 0), axis=1) % 7, None, None


@pytest.mark.compiler
def test_a_sliding_window_sees_nothing_of_its_neighbours_in_a_cached_pass():
    """Rows in different blocks, refreshing at different turns, against each of them alone."""
    cache = dc.DualCache(quorum=0.0, refresh_every=3)
    select = dc.ConfidenceThreshold(threshold=0.3)
    config = dc.DecodeConfig(partition=ByGuess(), select=select, cache=cache, **FIXED)
    model = small_model("dream")
    together = dc.generate(model, PROMPTS, LENGTHS, config=config)
    assert (together.commit_step > 0).all()
    for row in range(2):
        alone = dc.generate(model, PROMPTS[row : row + 1], LENGTHS[row : row + 1], config=config)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_array_equal(alone.commit_step[0], together.commit_step[row])


@dc.policy
class Reckless(dc.Partition):
    """Against its contract: lengths of 0 and beyond the longest. It remembers nothing and need not say so."""

    longest: int = dc.setting(default=4, low=1, doc="what it declares")
    length: int | jax.Array = dc.setting(default=0, static=False, doc="what it answers")

    def lengths(self, gen_length: int) -> dc.Lengths:
        return dc.Lengths(1, self.longest, 1)

    def __call__(self, prediction, start, remaining, memory):
        return jnp.full_like(remaining, 1) * self.length, None, None


@pytest.mark.parametrize("length", [0, -5, 1000])
def test_the_loop_ends_whatever_a_policy_says(length):
    config = dc.DecodeConfig(partition=Reckless(length=length), select=dc.TopOne(), **FIXED)
    done = dc.generate(small_model("llada"), PROMPTS, LENGTHS, config=config)
    assert done.nfe.tolist() == [GEN_LENGTH] * 2
    assert int(done.block_sizes[0, 0]) == (4 if length > 0 else 1)


def test_a_policy_is_not_its_class():
    with pytest.raises(ValueError, match=r"select must be a policy, such as TopOne\(\), got <class"):
        dc.DecodeConfig(select=Patient)  # type: ignore[arg-type]  # the mistake meant
    config = dc.DecodeConfig(partition=UntilFog(), select=Patient(), **FIXED)
    assert dataclasses.replace(config, cache=dc.DualCache()).partition == UntilFog()
