"""Batches: few programs, and answers that depend on neither the batch nor its shape."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable

import jax
import numpy as np
import pytest
from compilations import compilations
from small_models import small_model
from word_tokenizer import GEN_LENGTH, GREEDY, SAMPLING

from depcap_jax.decoding.generate import generate
from depcap_jax.decoding.recipes import recipe
from depcap_jax.decoding.state import Status
from depcap_jax.text.batching import Batcher, Decoded, at_least, doubling

LENGTHS = [5, 60, 1, 31, 5, 17, 44, 33, 9]
DRAW = np.random.default_rng(7)
PROMPTS = [DRAW.integers(0, 500, length).tolist() for length in LENGTHS]
LLADA = small_model("llada")


def by_index(batches: Iterable[list[Decoded]]) -> dict[int, Decoded]:
    return {decoded.index: decoded for batch in batches for decoded in batch}


@pytest.fixture(scope="module")
def batches() -> list[list[Decoded]]:
    return list(Batcher(LLADA, GREEDY, batch_size=4).run(PROMPTS))


def test_every_prompt_is_decoded_once_the_longest_first(batches):
    order = [decoded.index for batch in batches for decoded in batch]
    assert sorted(order) == list(range(len(PROMPTS)))
    assert [LENGTHS[index] for index in order] == sorted(LENGTHS, reverse=True)
    assert [len(batch) for batch in batches] == [4, 4, 1]  # only the last one has rows to spare


def test_what_is_decoded_is_what_generate_decodes(batches):
    for index, decoded in by_index(batches).items():
        ids = np.asarray([PROMPTS[index]], np.int32)
        padded = np.pad(ids, ((0, 0), (0, 64 - ids.shape[1])))
        alone = jax.tree.map(
            lambda x: x[0].tolist(), generate(LLADA, padded, np.asarray([ids.size]), config=GREEDY)
        )
        assert list(decoded.tokens) == alone.tokens[: alone.lengths]
        assert list(decoded.commit_steps) == alone.commit_step[: alone.lengths]
        assert (decoded.nfe, decoded.status) == (alone.nfe, Status.OK)
        assert list(decoded.block_sizes) == [size for size in alone.block_sizes if size]
        assert decoded.prompt_length == LENGTHS[index]
        assert decoded.result is None


def test_a_list_compiles_one_program_per_width():
    config = dataclasses.replace(GREEDY, gen_length=GEN_LENGTH - 1)  # no other test's program
    batcher = Batcher(LLADA, config, batch_size=4)
    with compilations() as compiled:
        assert batcher.compile(PROMPTS) > 0
    assert len(compiled) == 2, compiled  # widths 64 and 32
    with compilations() as compiled:
        list(batcher.run(PROMPTS))
        list(batcher.run(PROMPTS, indices=[8, 2]))
        # Three prompts are padded to four rows; another threshold is data.
        another = recipe("confidence", block_length=8, gen_length=GEN_LENGTH - 1, threshold=0.31)
        list(Batcher(LLADA, another, batch_size=4).run(PROMPTS[:3]))
    assert not compiled.programs


def test_a_run_that_goes_on_decodes_the_same(batches):
    batcher = Batcher(LLADA, GREEDY, batch_size=4)
    rest = [7, 0, 3]
    resumed = by_index(batcher.run(PROMPTS, indices=rest))
    assert list(resumed) == [7, 3, 0]  # 33, 31 and 5 tokens
    assert resumed == {index: by_index(batches)[index] for index in resumed}
    assert list(batcher.run(PROMPTS, indices=[])) == list(batcher.run([])) == []


def test_answers_depend_on_neither_rows_nor_widths(batches):
    wide = Batcher(LLADA, GREEDY, batch_size=4, buckets=(64,)).run(PROMPTS)
    alone = Batcher(LLADA, GREEDY, batch_size=1, buckets=(64,)).run(PROMPTS)
    assert by_index(wide) == by_index(alone) == by_index(batches)


def test_a_prompt_draws_by_its_place_in_the_list():
    prompts, key = [PROMPTS[0], PROMPTS[0], PROMPTS[2], PROMPTS[8]], jax.random.key(3)
    batcher = Batcher(LLADA, SAMPLING, batch_size=4)
    together = by_index(batcher.run(prompts, key=key))
    assert together[0].tokens != together[1].tokens
    assert by_index(batcher.run(prompts, indices=[1], key=key))[1] == together[1]
    for index, prompt in enumerate(prompts):
        row = np.asarray([[*prompt, *[0] * (32 - len(prompt))]])
        own = jax.random.fold_in(key, index)
        alone = generate(LLADA, row, np.asarray([len(prompt)]), config=SAMPLING, key=own)
        assert together[index].tokens == tuple(alone.tokens[0, : int(alone.lengths[0])].tolist())
    raw = by_index(batcher.run(prompts, key=jax.random.PRNGKey(3)))
    other = by_index(batcher.run(prompts, key=jax.random.key(4)))
    assert raw == together != other


def test_sampling_needs_a_key_at_the_call():
    batcher = Batcher(LLADA, SAMPLING, batch_size=4)
    with pytest.raises(ValueError, match=r"^sampling needs a key, such as jax.random.key\(0\), got None$"):
        batcher.run(PROMPTS)
    with pytest.raises(ValueError, match=r"one key for all prompts, got keys of shape \[9\]"):
        batcher.run(PROMPTS, key=jax.random.split(jax.random.key(0), 9))
    Batcher(LLADA, GREEDY).run(PROMPTS)  # where nothing is drawn no key is needed


def test_a_trace_is_that_of_the_row_alone_and_seconds_are_those_of_decoding():
    batcher = Batcher(LLADA, GREEDY, batch_size=2, buckets=(48,))  # no other test's program
    begin = time.perf_counter()
    with compilations() as compiled:
        (batch,) = batcher.run([PROMPTS[0], PROMPTS[6]], trace=True)
    elapsed = time.perf_counter() - begin
    assert len(compiled) == 1, compiled
    assert sum(decoded.seconds for decoded in batch) < elapsed - compiled.seconds
    assert batch[0].seconds == batch[1].seconds > 0
    with compilations() as compiled:
        Batcher(LLADA, GREEDY, batch_size=2, buckets=(48,)).compile([PROMPTS[0]] * 2, trace=True)
    assert not compiled.programs
    for decoded in batch:
        result = decoded.result
        assert result is not None
        assert result.trace is not None
        leaves = jax.tree.leaves(result)
        assert all(isinstance(leaf, np.ndarray) and len(leaf) == 1 for leaf in leaves)
        assert tuple(result.tokens[0, : result.lengths[0]].tolist()) == decoded.tokens
        # The trace's guesses at the pass that committed them are the tokens.
        steps = np.asarray(decoded.commit_steps)
        assert (
            tuple(np.asarray(result.trace.guess)[0, steps - 1, np.arange(len(steps))].tolist())
            == decoded.tokens
        )
    plain = by_index(Batcher(LLADA, GREEDY, batch_size=4).run([PROMPTS[0], PROMPTS[6], *PROMPTS[:2]]))
    assert batch == [plain[1], plain[0]]


def test_what_does_not_fit_is_named():
    batcher = Batcher(LLADA, GREEDY)
    assert batcher.limit == 1024 - GEN_LENGTH
    too_long = [[1], [1] * 1009]
    words = r"has 1009 tokens; at most 1008 fit beside an answer of 16 in the model's context of 1024"
    with pytest.raises(ValueError, match=f"^problem 1 {words}$"):
        batcher.check(too_long, "problem")
    for refuse in (batcher.check, batcher.run, batcher.compile):
        with pytest.raises(ValueError, match=f"^prompt 1 {words}$"):
            refuse(too_long)
    batcher.check([[1] * 1008])
    with pytest.raises(ValueError, match=r"batch_size .* got 0"):
        Batcher(LLADA, GREEDY, batch_size=0)
    with pytest.raises(ValueError, match=r"buckets .* in \[1, 1008\], got 2000"):
        Batcher(LLADA, GREEDY, buckets=(64, 2000))
    with pytest.raises(ValueError, match="gen_length is 2048, but the model's context has 1024"):
        Batcher(LLADA, dataclasses.replace(GREEDY, gen_length=2048))


def test_padding_widths():
    def widths(batcher: Batcher) -> list[int]:
        return sorted({len(batcher.pad([1] * length)) for length in range(batcher.limit + 1)})

    assert widths(Batcher(LLADA, GREEDY)) == [32, 64, 128, 256, 512, 1008]
    assert widths(Batcher(LLADA, GREEDY, buckets=(100, 50))) == [50, 100, 1008]
    assert widths(Batcher(LLADA, dataclasses.replace(GREEDY, gen_length=1000))) == [24]
    assert widths(Batcher(LLADA, dataclasses.replace(GREEDY, gen_length=1024))) == [0]
    padded = Batcher(LLADA, GREEDY).pad([7, 8])
    assert padded.tolist() == [7, 8, *[LLADA.config.pad_token_id] * 30]


def test_doubling():
    assert doubling(32, 100) == (32, 64, 100)
    assert doubling(32, 64) == (32, 64)
    assert doubling(32, 24) == (24,)
    assert [at_least(needed, (32, 64, 100)) for needed in (0, 32, 33, 100)] == [32, 32, 64, 100]
