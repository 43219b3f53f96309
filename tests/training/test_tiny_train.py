"""The training script of the embedded models: rounds of batches, a few steps, resuming."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from depcap_jax.tiny import task
from training import batches, learning, train, vocabulary as tokenizer
from training.batches import Batches, encode
from training.masking import Batch, find_sums, mask
from training.shift import dream_from_llada

planned_rate = learning.rate_at


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    """A model and batches that train in milliseconds, with a single batch shape."""
    sizes = train.model_config

    def tiny_config(family):
        layers = 2 if family == "dream" else 1
        return dataclasses.replace(
            sizes(family), width=32, num_layers=layers, num_heads=4, num_kv_heads=2, head_dim=16, ff_width=48
        )

    monkeypatch.setattr(train, "model_config", tiny_config)
    monkeypatch.setattr(batches, "BUCKETS", ((168, 8),))
    monkeypatch.setattr(train, "BUCKETS", ((168, 8),))
    monkeypatch.setattr(batches, "FULL", (168, 8))
    monkeypatch.setattr(batches, "_ROUND", 32)
    monkeypatch.setattr(learning, "_WARMUP_STEPS", 3)
    return tiny_config


def rows(count: int = 40):
    stream = task.problems(5, held_out=False)
    return encode(tokenizer.build(), [next(stream) for _ in range(count)])


def test_rounds_depend_on_the_seed_and_index_alone():
    first, again, other = Batches(1).round(3), Batches(1).round(3), Batches(2).round(3)
    assert len(first) == len(again)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.noisy, two.noisy)
    assert not np.array_equal(first[0].noisy, other[0].noisy)


def test_a_round_leaves_no_problem_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "BUCKETS", ((48, 8), (80, 6), (112, 5)))
    drawn = task.problems((7, 400), held_out=False)
    expected = {tuple(row.prompt) for row in encode(tokenizer.build(), [next(drawn) for _ in range(32)])}
    seen = set()
    for batch in Batches(7).round(400):
        for line in batch.clean.tolist():
            seen.add(tuple(line[: line.index(tokenizer.SPECIAL.index(tokenizer.ASSISTANT)) + 1]))
    assert seen == expected


def test_drills_hide_arithmetic_alone_and_end_with_the_easy_rounds():
    mask_id, assistant = (tokenizer.SPECIAL.index(t) for t in (tokenizer.MASK, tokenizer.ASSISTANT))

    def is_drill(batch: Batch) -> bool:
        for clean, noisy in zip(batch.clean.tolist(), batch.noisy, strict=True):
            start = clean.index(assistant) + 1
            added, results = find_sums(clean[start:])
            if (np.flatnonzero(noisy == mask_id) - start).tolist() not in [added, *results]:
                return False
        return True

    first, last = ([is_drill(batch) for batch in Batches(3).round(i)] for i in (0, batches.EASY_ROUNDS))
    assert 1 <= first.count(True) < first.count(False)
    assert last.count(True) == 0


def test_dream_learns_the_next_position(tmp_path):
    """The loss at position i reads the output at i - 1, and at 0 its own."""
    model = train.Run("dream", tmp_path).model()
    batch = mask(rows(4), 168, np.random.default_rng(0))
    logits = jax.nn.log_softmax(model(jnp.asarray(batch.noisy), jnp.asarray(batch.valid)))
    found = np.asarray(learning.token_losses(model, batch))
    rows_, ids = np.arange(4), batch.clean
    np.testing.assert_allclose(found[:, 0], -logits[rows_, 0, ids[:, 0]], rtol=1e-4)
    np.testing.assert_allclose(found[:, 50], -logits[rows_, 49, ids[:, 50]], rtol=1e-4)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_cached_loss_is_that_of_a_cached_decoder(family, small, tmp_path, monkeypatch):
    """A full pass over what was known when the block began, then one over the block or what follows too."""
    monkeypatch.setattr(
        train, "model_config", lambda family: dataclasses.replace(small(family), num_layers=2)
    )
    run = train.Run(family, tmp_path)
    # Weights of a size at which what a position attends to matters.
    model = run.weights.model({n: 10 * p if "kernel" in n else p for n, p in run.state["params"].items()})
    batch = mask(rows(6), 168, np.random.default_rng(0), cached=True)
    assert batch.before is not None
    assert batch.frozen is not None
    found = np.asarray(learning.token_losses(model, batch))
    lead = int(family == "dream")
    for i in range(6):
        span = np.flatnonzero(~batch.frozen[i])
        assert span[0] + len(span) - 1 == span[-1]
        line = jax.tree.map(lambda x, i=i: jnp.asarray(x[i : i + 1]), batch)
        _, cache = model.hidden(line.before, valid=line.valid, cache=model.init_cache(1, 168))
        query = np.arange(span[0] - lead, span[-1] + 1)
        hidden, _ = model.hidden(
            line.noisy[:, query],
            valid=line.valid,
            start=jnp.asarray(query[:1]),
            cache=cache,
            write=jnp.asarray(query >= span[0])[None],
        )
        logits = jax.nn.log_softmax(model.logits(hidden))[0, : len(span)]
        expected = -logits[np.arange(len(span)), batch.clean[i, span]]
        np.testing.assert_allclose(found[i, span], expected, rtol=1e-3, atol=1e-4)
    uncached = np.asarray(learning.token_losses(model, dataclasses.replace(batch, before=None, frozen=None)))
    assert np.max(np.abs(uncached - found)[~batch.frozen]) > 0.01


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_loss_goes_down(family, tmp_path):
    run = train.Run(family, tmp_path)
    losses = run.train(steps=60, peak=3e-2, quiet=True)
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:3])
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
    assert learning.rate_at(500, 0.1) == learning.PEAK_RATE
    assert learning.rate_at(500, 0.825) == pytest.approx(learning.PEAK_RATE / 2)
    assert learning.rate_at(500, 1.0) < 0.01 * learning.PEAK_RATE


def test_a_run_starts_from_the_weights_of_another(tmp_path):
    first = train.Run("llada", tmp_path / "a", seed=1)
    first.train(steps=2, quiet=True)
    second = train.Run("llada", tmp_path / "b", start=tmp_path / "a")
    for name, leaf in first.state["average"].items():
        np.testing.assert_array_equal(leaf, second.state["params"][name])
    assert second.round == batches.EASY_ROUNDS
    train.Run("dream", tmp_path / "c").save()
    with pytest.raises(ValueError, match="dream of other sizes than this llada"):
        train.Run("llada", tmp_path / "d", start=tmp_path / "c")


def test_a_dream_starts_with_what_a_llada_predicts(tmp_path):
    """Its hidden state at i - 1 is LLaDA's at i; embeddings of different sizes make no difference here."""
    llada = train.Run("llada", tmp_path / "a")
    llada.train(steps=40, quiet=True)
    embed = llada.state["average"][".embed.value"]
    alike = embed / jnp.sqrt(jnp.mean(embed**2, axis=1, keepdims=True))
    llada.state["average"][".embed.value"] = alike
    llada.save()
    dream = train.Run("dream", tmp_path / "b", start=tmp_path / "a")
    ids = jnp.asarray(mask(rows(4), 168, np.random.default_rng(0)).noisy)
    valid = jnp.ones(ids.shape, bool)
    # The token at 0 is lost, and nothing stands behind the last one: mask both.
    expected = llada.model().hidden(ids, valid=valid.at[:, 0].set(False))[0][:, 1:]
    rotated = dream.model().hidden(ids, valid=valid)[0][:, :-1]
    assert float(jnp.max(jnp.abs(rotated - expected))) < 0.1 * float(jnp.max(jnp.abs(expected)))


def test_a_shift_that_cannot_carry_every_token_is_refused(tmp_path):
    run = train.Run("llada", tmp_path)
    narrow = dataclasses.replace(train.model_config("dream"), num_kv_heads=1)
    with pytest.raises(ValueError, match="1 key/value heads and values 16 wide"):
        dream_from_llada(run.state["params"], run.state["params"], narrow)


def test_another_model_is_not_resumed(tmp_path):
    train.Run("llada", tmp_path).save()
    with pytest.raises(ValueError, match="other sizes"):
        train.Run("dream", tmp_path, resume=True)


def test_the_command_refuses_to_overwrite_a_run(tmp_path):
    (tmp_path / "state.npz").touch()
    command = [sys.executable, "-m", "training.train", "--family", "llada", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--resume" in done.stderr
