"""The training script of the embedded models: batches, a few steps, resuming."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depcap_jax.tiny import batches, task, tokenizer, train
from depcap_jax.tiny.batches import ANSWER_LENGTH, Batch, Batches, encode, mask

MASK = tokenizer.SPECIAL.index(tokenizer.MASK)
planned_rate = train.rate_at


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    """A model and batches that train in milliseconds, with a single batch shape."""
    sizes = train.model_config

    def tiny_config(family):
        return dataclasses.replace(
            sizes(family), width=32, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, ff_width=48
        )

    monkeypatch.setattr(train, "model_config", tiny_config)
    monkeypatch.setattr(batches, "BUCKETS", ((168, 8),))
    monkeypatch.setattr(train, "BUCKETS", ((168, 8),))
    monkeypatch.setattr(batches, "FULL", (168, 8))
    monkeypatch.setattr(batches, "_ROUND", 32)
    monkeypatch.setattr(train, "_WARMUP_STEPS", 3)


def rows(count: int = 40):
    stream = task.problems(5, held_out=False)
    return encode(tokenizer.build(), [next(stream) for _ in range(count)])


def test_masks_cover_answers_only():
    drawn = rows()
    batch = mask(drawn, 168, np.random.default_rng(0))
    hidden = batch.noisy == MASK
    np.testing.assert_array_equal(hidden, batch.weight > 0)
    np.testing.assert_array_equal(np.where(hidden, batch.clean, batch.noisy), batch.clean)
    for i, row in enumerate(drawn):
        end = len(row.prompt) + ANSWER_LENGTH
        assert not hidden[i, : len(row.prompt)].any()
        assert not hidden[i, end:].any()
        assert hidden[i].any()
        assert batch.valid[i].sum() == min(end, 168)


def test_every_other_row_is_masked_as_blockwise_decoding_meets_it():
    batch = mask(rows(200), 168, np.random.default_rng(0))
    hidden = batch.noisy == MASK
    ends = [(hidden[i] | ~batch.valid[i])[-20:].all() for i in range(200)]
    assert all(ends[1::2])
    assert not all(ends[::2])


def test_weights_count_every_answer_by_its_length():
    """Each row's weights sum to its share of all answer tokens, unless very few are masked."""
    batch = mask(rows(), 168, np.random.default_rng(0))
    hidden = batch.noisy == MASK
    share = hidden.sum(1) / ANSWER_LENGTH
    sums = batch.weight.sum(1)[(share > 0.1)]
    np.testing.assert_allclose(sums, 1 / len(hidden), rtol=0.03)


def test_rounds_depend_on_the_seed_and_index_alone():
    first, again, other = Batches(1).round(3), Batches(1).round(3), Batches(2).round(3)
    assert len(first) == len(again)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.noisy, two.noisy)
    assert not np.array_equal(first[0].noisy, other[0].noisy)


def test_a_round_leaves_no_problem_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "BUCKETS", ((48, 8), (80, 6), (112, 5)))
    drawn = task.problems((7, 200), held_out=False)
    expected = {tuple(row.prompt) for row in encode(tokenizer.build(), [next(drawn) for _ in range(32)])}
    seen = set()
    for batch in Batches(7).round(200):
        for line in batch.clean.tolist():
            seen.add(tuple(line[: line.index(tokenizer.SPECIAL.index(tokenizer.ASSISTANT)) + 1]))
    assert seen == expected


def test_dream_learns_the_next_position(tmp_path):
    """The loss at position i reads the output at i - 1, and at 0 its own."""
    model = train.Run("dream", tmp_path).model()
    batch = mask(rows(4), 168, np.random.default_rng(0))
    logits = jax.nn.log_softmax(model(jnp.asarray(batch.noisy), jnp.asarray(batch.valid)))
    found = np.asarray(train.token_losses(model, batch))
    rows_, ids = np.arange(4), batch.clean
    np.testing.assert_allclose(found[:, 0], -logits[rows_, 0, ids[:, 0]], rtol=1e-4)
    np.testing.assert_allclose(found[:, 50], -logits[rows_, 49, ids[:, 50]], rtol=1e-4)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_loss_goes_down(family, tmp_path):
    run = train.Run(family, tmp_path)
    losses = run.train(steps=60, quiet=True)
    assert np.mean(losses[-5:]) < 0.7 * losses[0]
    assert set(run.evaluate()) == set(task.KINDS)
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert logged[0]["step"] == 50


def test_resumed_run_equals_unbroken_run(tmp_path):
    unbroken = train.Run("llada", tmp_path / "a")
    whole = unbroken.train(steps=12, quiet=True)
    # The broken run follows the same plan of 12 steps and is interrupted in the middle of a round.
    broken = train.Run("llada", tmp_path / "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "rate_at", lambda step, progress, peak: planned_rate(step, step / 12, peak))
        first = broken.train(steps=7, quiet=True)
    resumed = train.Run("llada", tmp_path / "b", resume=True)
    assert (resumed.step, resumed.seed) == (7, 0)
    rest = resumed.train(steps=12, quiet=True)
    np.testing.assert_allclose(first + rest, whole, rtol=1e-5)
    for one, two in zip(*map(jax.tree.leaves, (unbroken.model(), resumed.model())), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)


def test_rate_falls_to_zero_at_the_end_of_any_plan():
    assert train.rate_at(500, 0.1) == train.PEAK_RATE
    assert train.rate_at(500, 0.65) == pytest.approx(train.PEAK_RATE / 2)
    assert train.rate_at(500, 1.0) < 0.01 * train.PEAK_RATE


def test_a_run_starts_from_the_weights_of_another_family(tmp_path):
    first = train.Run("llada", tmp_path / "a", seed=1)
    first.train(steps=2, quiet=True)
    second = train.Run("dream", tmp_path / "b", start=tmp_path / "a")
    for name, leaf in first.state["average"].items():
        np.testing.assert_array_equal(leaf, second.state["params"][name])


def test_another_model_is_not_resumed(tmp_path):
    train.Run("llada", tmp_path).save()
    with pytest.raises(ValueError, match="other sizes"):
        train.Run("dream", tmp_path, resume=True)


def test_the_command_refuses_to_overwrite_a_run(tmp_path):
    (tmp_path / "state.npz").touch()
    command = [sys.executable, "-m", "depcap_jax.tiny.train", "--family", "llada", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--resume" in done.stderr


def test_a_batch_is_a_pytree():
    batch = mask(rows(2), 168, np.random.default_rng(0))
    assert isinstance(jax.tree.map(np.asarray, batch), Batch)
