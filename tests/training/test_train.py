"""The training script of the embedded models: rounds of batches, a few steps, resuming.

Models and batches are small, of a single shape, and all runs share one compiled step per family.
"""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from depcap_jax.checkpoints.loading import load
from depcap_jax.checkpoints.tokenizer import load_tokenizer
from depcap_jax.models import Transformer, layers
from training import batches, learning, task, train, vocabulary
from training.batches import Batches, encode
from training.masking import Batch, find_sums, mask
from training.shift import dream_from_llada

planned_rate = learning.rate_at
real_config = train.model_config


def small_config(family, **changes):
    sizes = {"width": 32, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "ff_width": 48}
    layers = {"num_layers": 2 if family == "dream" else 1}
    return dataclasses.replace(real_config(family), **{**sizes, **layers, **changes})


@pytest.fixture(autouse=True, scope="module")
def small():
    """A model and batches that train in milliseconds, with a single batch shape."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "model_config", small_config)
        patch.setattr(batches, "BUCKETS", ((168, 8),))
        patch.setattr(train, "BUCKETS", ((168, 8),))
        patch.setattr(batches, "FULL", (168, 8))
        patch.setattr(batches, "_ROUND", 32)
        patch.setattr(learning, "_WARMUP_STEPS", 3)
        yield


@dataclasses.dataclass
class Trained:
    run: train.Run
    losses: list[float]
    folder: Path


@pytest.fixture(scope="module")
def llada(small, tmp_path_factory) -> Trained:
    return trained("llada", tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="module")
def dream(small, tmp_path_factory) -> Trained:
    return trained("dream", tmp_path_factory.mktemp("dream"))


def trained(family, folder: Path) -> Trained:
    run = train.Run(family, folder, seed=1)
    return Trained(run, run.train(steps=60, peak=3e-2, quiet=True), folder)


def rows(count: int = 40):
    stream = task.problems(5, held_out=False)
    return encode(vocabulary.build(), [next(stream) for _ in range(count)])


def test_rounds_depend_on_the_seed_and_index_alone():
    first, again, other = Batches(1).round(3), Batches(1).round(3), Batches(2).round(3)
    assert len(first) == len(again)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.noisy, two.noisy)
    assert not np.array_equal(first[0].noisy, other[0].noisy)


def test_a_round_leaves_no_problem_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batches, "BUCKETS", ((48, 8), (80, 6), (112, 5)))
    short, long = task.problems((7, 400), held_out=False), task.several((7, 400), held_out=False)
    drawn = [*itertools.islice(short, 32), *itertools.islice(long, batches._LONG_ROUND)]
    expected = {tuple(row.prompt) for row in encode(vocabulary.build(), drawn)}
    prompts = {prompt for batch in Batches(7).round(400) for prompt, _ in split(batch)}
    assert prompts == expected


def split(batch: Batch) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each row's prompt, and how many tokens its answer has."""
    assistant = vocabulary.SPECIAL.index(vocabulary.ASSISTANT)
    end = vocabulary.SPECIAL.index(vocabulary.EOS)
    for line in batch.clean.tolist():
        start = line.index(assistant) + 1
        yield tuple(line[:start]), [*line, end].index(end, start) - start


def test_prompts_that_ask_for_several_things_come_after_the_easy_rounds_and_grow():
    first = tuple(vocabulary.build().encode(f"{vocabulary.BOS}{vocabulary.USER}1.").ids)

    def answers(index: int) -> list[int]:
        rows = [row for batch in Batches(3).round(index) for row in split(batch)]
        return [length for prompt, length in rows if prompt[: len(first)] == first]

    assert answers(0) == answers(batches.EASY_ROUNDS - 1) == []
    begin, end = answers(batches.EASY_ROUNDS), answers(batches.EASY_ROUNDS + batches._LONG_ROUNDS)
    assert len(begin) >= batches._LONG_ROUND <= len(end)
    assert 30 <= min(begin) <= max(begin) <= 60 <= min(end) <= max(end) <= 120


def test_drills_hide_arithmetic_alone_and_end_with_the_easy_rounds():
    mask_id, assistant = (vocabulary.SPECIAL.index(t) for t in (vocabulary.MASK, vocabulary.ASSISTANT))

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


@pytest.mark.compiler
def test_dream_learns_the_next_position(dream):
    """The loss at position i reads the output at i - 1, and at 0 its own."""
    model = dream.run.model()
    batch = mask(rows(4), 168, np.random.default_rng(0))

    @jax.jit
    def plain_and_trained(model):
        return jax.nn.log_softmax(model(batch.noisy, batch.lengths)), learning.token_losses(model, batch)

    logits, losses = map(np.asarray, plain_and_trained(model))
    every, ids = np.arange(4), batch.clean
    np.testing.assert_allclose(losses[:, 0], -logits[every, 0, ids[:, 0]], rtol=1e-4)
    np.testing.assert_allclose(losses[:, 50], -logits[every, 49, ids[:, 50]], rtol=1e-4)


@pytest.mark.compiler
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_cached_loss_is_that_of_a_cached_decoder(family):
    """A full pass over what was known when the block began, then one over the block or what follows too."""
    weights = learning.Weights(Transformer(small_config(family, num_layers=2), rngs=nnx.Rngs(0)))
    # Weights of a size at which what a position attends to matters.
    params = learning.head_start(weights.initial)
    model = weights.model({name: 10 * p if "kernel" in name else p for name, p in params.items()})
    batch = mask(rows(6), 168, np.random.default_rng(0), cached=True)
    assert batch.before is not None
    assert batch.frozen is not None
    token_losses = jax.jit(learning.token_losses)
    losses, lead = np.asarray(token_losses(model, batch)), int(family == "dream")
    spans = [np.flatnonzero(~line) for line in batch.frozen]
    width = max(map(len, spans)) + lead  # one width for all: a shorter block's other queries write nothing

    @jax.jit
    def cached_pass(model, line, first, write):
        _, cache = model.hidden(line.before, lengths=line.lengths, cache=model.init_cache(1, 168))
        ids = jax.lax.dynamic_slice_in_dim(line.noisy, first, width, axis=1)
        hidden, _ = model.hidden(ids, lengths=line.lengths, start=first[None], cache=cache, write=write[None])
        return jax.nn.log_softmax(model.logits(hidden))[0]

    for i, span in enumerate(spans):
        assert span[0] + len(span) - 1 == span[-1]
        line = jax.tree.map(lambda x, i=i: jnp.asarray(x[i : i + 1]), batch)
        first = min(span[0] - lead, 168 - width)
        query = first + np.arange(width)
        logits = cached_pass(model, line, jnp.int32(first), jnp.asarray(np.isin(query, span)))
        expected = -logits[span - lead - first, batch.clean[i, span]]
        np.testing.assert_allclose(losses[i, span], expected, rtol=1e-3, atol=1e-4)
    nothing_kept = dataclasses.replace(batch, frozen=np.zeros_like(batch.frozen))
    uncached = np.asarray(token_losses(model, nothing_kept))
    assert np.max(np.abs(uncached - losses)[~batch.frozen]) > 0.01


@pytest.mark.compiler
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_loss_goes_down(family, request):
    done: Trained = request.getfixturevalue(family)
    assert np.mean(done.losses[-10:]) < 0.7 * np.mean(done.losses[:3])
    assert set(done.run.evaluate()) == {*task.KINDS, "several"}
    logged = [json.loads(line) for line in (done.folder / "log.jsonl").read_text().splitlines()]
    assert logged[0]["step"] == 50


@pytest.mark.compiler
def test_the_losses_by_kind_are_those_of_the_averaged_weights(llada):
    """And on the same masks each time."""
    model = llada.run.model()
    by_kind = llada.run.evaluate()
    stream = task.problems("trial", held_out=False, kind="story")
    batch = batches.fixed_masks([next(stream) for _ in range(8)], 168)
    losses = np.asarray(jax.jit(learning.token_losses)(model, batch))
    assert by_kind["story"] == pytest.approx(float(np.sum(losses * batch.weight)), abs=1e-3)
    assert llada.run.evaluate() == by_kind


@pytest.mark.compiler
def test_resumed_run_equals_unbroken_run(tmp_path):
    unbroken = train.Run("llada", tmp_path / "a")
    whole = unbroken.train(steps=12, quiet=True)
    # The broken run follows the same plan of 12 steps and is interrupted in the middle of a round.
    broken = train.Run("llada", tmp_path / "b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "rate_at", lambda step, progress, peak: planned_rate(step, step / 12, peak))
        first = broken.train(steps=7, quiet=True)
    assert broken.offset > 0
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


@pytest.mark.compiler
def test_a_run_starts_from_the_weights_of_another(llada, dream, tmp_path):
    second = train.Run("llada", tmp_path / "b", start=llada.folder)
    for name, leaf in llada.run.state["average"].items():
        np.testing.assert_array_equal(leaf, second.state["params"][name])
    assert second.round == batches.EASY_ROUNDS
    with pytest.raises(ValueError, match="dream of other sizes than this llada"):
        train.Run("llada", tmp_path / "d", start=dream.folder)


@pytest.mark.compiler
def test_a_run_starts_from_the_weights_of_a_model(tmp_path, monkeypatch):
    """From its folder, or from its name; its weights are stored in float16."""
    # The published layout knows no heads that are not a part of the width.
    monkeypatch.setattr(train, "model_config", lambda family: small_config(family, head_dim=8))
    first = train.Run("llada", tmp_path / "a", seed=3)
    second = train.Run("llada", tmp_path / "b", start=first.export())
    for name, leaf in first.state["average"].items():
        np.testing.assert_allclose(leaf, second.state["params"][name], rtol=1e-3, atol=1e-6)
        np.testing.assert_array_equal(second.state["params"][name], second.state["average"][name])
    assert (second.round, second.step) == (batches.EASY_ROUNDS, 0)
    with pytest.raises(ValueError, match="tiny-llada holds a llada of other sizes than this llada"):
        train.Run("llada", tmp_path / "c", start=Path("tiny-llada"))
    monkeypatch.setattr(train, "model_config", real_config)
    named = train.Run("llada", tmp_path / "d", start=Path("tiny-llada"))
    embedding = load("tiny-llada", dtype="float32")[0].embed[...]
    np.testing.assert_array_equal(named.state["params"][".embed.value"], embedding)


@pytest.mark.compiler
def test_a_dream_starts_with_what_a_llada_predicts(llada, tmp_path, monkeypatch):
    """Its hidden state at i - 1 is LLaDA's at i; embeddings of different sizes make no difference here."""
    shutil.copytree(llada.folder, tmp_path / "a")
    first = train.Run("llada", tmp_path / "a", resume=True)
    embed = first.state["average"][".embed.value"]
    first.state["average"][".embed.value"] = embed / jnp.sqrt(jnp.mean(embed**2, axis=1, keepdims=True))
    first.save()
    second = train.Run("dream", tmp_path / "b", start=tmp_path / "a")
    ids = jnp.asarray(mask(rows(4), 168, np.random.default_rng(0)).noisy)
    rotated = second.model().hidden(ids)[0][:, :-1]
    # The token at 0 is lost, and nothing stands behind the last one: hide both.
    attend = layers._attend
    monkeypatch.setattr(
        layers, "_attend", lambda q, k, v, n, fused: attend(q, k[:, 1:], v[:, 1:], n - 1, fused)
    )
    expected = first.model().hidden(ids)[0][:, 1:]
    assert float(jnp.max(jnp.abs(rotated - expected))) < 0.1 * float(jnp.max(jnp.abs(expected)))


@pytest.mark.compiler
def test_a_shift_that_cannot_carry_every_token_is_refused(llada):
    params = llada.run.state["params"]
    with pytest.raises(ValueError, match="1 key/value heads and values 16 wide"):
        dream_from_llada(params, params, dataclasses.replace(small_config("dream"), num_kv_heads=1))


@pytest.mark.compiler
def test_another_model_is_not_resumed(llada):
    with pytest.raises(ValueError, match="other sizes"):
        train.Run("dream", llada.folder, resume=True)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give --resume to go on with it, or another --out"),
        (["--resume", "--start", "elsewhere"], "leave out --start"),
        (["--resume", "--steps", "0"], "--steps must be above 0, got 0"),
        (["--resume", "--family", "dream"], "belongs to a model of other sizes"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(words, complaint, llada, capsys):
    before = (llada.folder / "state.npz").read_bytes()
    with pytest.raises(SystemExit, match="2"):
        train.main(["--family", "llada", "--out", str(llada.folder), *words])
    assert complaint in capsys.readouterr().err
    assert (llada.folder / "state.npz").read_bytes() == before


def test_the_command_trains_and_writes_the_model(tmp_path, capsys):
    train.main(["--family", "llada", "--out", str(tmp_path), "--steps", "2"])
    assert f"the model is in {tmp_path / 'model'}" in capsys.readouterr().out
    assert load_tokenizer(tmp_path / "model") is not None
    run = train.Run("llada", tmp_path, resume=True)
    assert run.step == 2
    embedding = load_file(tmp_path / "model" / "model.safetensors")["model.transformer.wte.weight"]
    assert embedding.dtype == np.float16
    np.testing.assert_array_equal(embedding, np.asarray(run.model().embed[...], np.float16))
