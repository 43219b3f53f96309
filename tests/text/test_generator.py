"""Texts in, texts out: which prompts reach the model, in which order answers come, what goes wrong."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compilations
from small_models import small_model
from word_tokenizer import EOS, GEN_LENGTH, GREEDY, SAMPLING, word_prompts, word_tokenizer, words

from depcap_jax.decoding.generate import generate
from depcap_jax.decoding.recipes import recipe
from depcap_jax.decoding.state import DecodeError, Status
from depcap_jax.inspect.replay import replay
from depcap_jax.text.codec import MissingTokenizerError
from depcap_jax.text.generator import RepliesError, TextGenerator

CHAT, BARE = word_tokenizer(chat=True), word_tokenizer(chat=False)
LLADA = small_model("llada")
PROMPTS = word_prompts()


@pytest.fixture(scope="module")
def replies():
    """In batches of 4, two of them full."""
    return TextGenerator(LLADA, BARE, GREEDY, batch_size=4).run(PROMPTS)


def test_answers_are_those_of_generate_and_in_order(replies):
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        ids = BARE(prompt)["input_ids"]
        row = np.zeros((1, 64), np.int32)
        row[0, : len(ids)] = ids
        result = generate(LLADA, row, np.asarray([len(ids)]), config=GREEDY)
        alone = jax.tree.map(lambda x: x[0].tolist(), result)
        assert list(reply.tokens) == alone.tokens[: alone.lengths]
        assert list(reply.commit_steps) == alone.commit_step[: alone.lengths]
        assert reply.nfe == alone.nfe
        assert list(reply.block_sizes) == [size for size in alone.block_sizes if size]
        assert (reply.prompt_length, reply.status) == (len(ids), Status.OK)
        assert reply.text == BARE.decode(reply.tokens, skip_special_tokens=True)
        assert EOS not in reply.tokens
        assert reply.result is None
        assert reply.seconds > 0
    assert len({reply.text for reply in replies}) == len(PROMPTS)


def test_preparing_compiles_what_a_run_needs_and_decodes_nothing(replies):
    config = dataclasses.replace(GREEDY, gen_length=GEN_LENGTH - 2)  # no other test's program
    generator = TextGenerator(LLADA, CHAT, config, batch_size=2)
    with compilations() as compiled:
        assert generator.prepare(PROMPTS[4:6]) > 0
    assert len(compiled) == 1, compiled
    other = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, threshold=0.31)
    with compilations() as compiled:
        generator.run(PROMPTS[4:6])
        TextGenerator(LLADA, BARE, other, batch_size=4).run(PROMPTS)
        # Three prompts fit into one batch: they are padded to four rows, which are compiled already.
        texts = TextGenerator(LLADA, BARE, GREEDY, batch_size=4)([PROMPTS[0], *PROMPTS[2:4]])
    assert not compiled.programs
    assert texts == [replies[index].text for index in (0, 2, 3)]


def test_chat_and_bare_prompts_reach_the_model():
    chat = TextGenerator(LLADA, CHAT, GREEDY, batch_size=4)
    plain = TextGenerator(LLADA, BARE, GREEDY, batch_size=4)
    assert chat.encode("w2 w3") == plain.encode("<user> w2 w3 <assistant>") == [500, 2, 3, 501]
    asked = chat.run(["w2 w3", [{"role": "user", "content": "w2 w3"}], "", "w4"])
    written = plain.run(["<user> w2 w3 <assistant>", "<user> <assistant>", "", "w4"])
    assert asked[0] == asked[1] == written[0]
    assert asked[2] == written[1]
    assert [reply.prompt_length for reply in written] == [4, 2, 0, 1]
    assert all(reply.status is Status.OK and reply.nfe > 0 for reply in written)


def test_another_key_gives_another_sample():
    generator = TextGenerator(LLADA, BARE, SAMPLING, batch_size=4)
    prompts, key = ["w1 w2", "w1 w2", "w3", "w4 w5 w6"], jax.random.key(3)
    first = generator.run(prompts, key=key)
    assert generator.run(prompts, key=key) == first
    assert generator(prompts, key=key) == [reply.text for reply in first]
    second = generator.run(prompts, key=jax.random.key(4))
    assert all(one.tokens != other.tokens for one, other in zip(first, second, strict=True))
    assert first[0].tokens != first[1].tokens


@pytest.mark.compiler
def test_samples_do_not_depend_on_the_batch():
    prompts, key = ["w1 w2", "w1 w2", "w3", "w4 w5 w6"], jax.random.key(3)
    together = TextGenerator(LLADA, BARE, SAMPLING, batch_size=4)
    alone = TextGenerator(LLADA, BARE, SAMPLING, batch_size=1).run(prompts, key=key)
    assert together.run(prompts, key=key) == alone
    assert together.run(prompts, key=jax.random.PRNGKey(3)) == alone


def test_sampling_needs_a_key_at_the_call():
    generator = TextGenerator(LLADA, BARE, SAMPLING)
    generator.prepare([])
    for ask in (generator, generator.run):
        with pytest.raises(ValueError, match=r"sampling needs a key, such as jax.random.key\(0\), got None"):
            ask(["w1"])
    for ask in (generator.stream, generator.infill):
        with pytest.raises(ValueError, match="sampling needs a key"):
            ask("w1 [gap:2]")


def test_a_text_can_be_traced(replies):
    chosen = [0, 2, 5, 8]
    generator = TextGenerator(LLADA, BARE, GREEDY, batch_size=1)
    traced = generator.run([PROMPTS[index] for index in chosen], trace=True)
    assert traced == [replies[index] for index in chosen]
    for reply in traced:
        assert reply.result is not None
        played = replay(reply.result)
        assert (played.nfe, played.visible) == (reply.nfe, len(reply.tokens))
        assert tuple(played.tokens[: played.visible].tolist()) == reply.tokens
        assert tuple(played.commit_step[: played.visible].tolist()) == reply.commit_steps
        assert tuple(block.size for block in played.blocks) == reply.block_sizes
        with pytest.raises(ValueError, match=r"row .* got 1"):
            replay(reply.result, 1)  # it is a batch of one


def test_wrong_arguments_are_named():
    with pytest.raises(MissingTokenizerError, match="no tokenizer"):
        TextGenerator(LLADA, None, GREEDY)
    with pytest.raises(TypeError, match="tokenizer must be"):
        TextGenerator(LLADA, CHAT.backend_tokenizer, GREEDY)  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(TypeError, match=r"model must be a model, .* got tuple"):
        TextGenerator((LLADA, CHAT), CHAT, GREEDY)  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(TypeError, match="config must be a DecodeConfig"):
        TextGenerator(LLADA, CHAT, "depcap")  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(ValueError, match="no chat template"):
        TextGenerator(LLADA, BARE, GREEDY, chat=True)
    with pytest.raises(ValueError, match=r"batch_size .* got 0"):
        TextGenerator(LLADA, CHAT, GREEDY, batch_size=0)
    with pytest.raises(ValueError, match=r"buckets .* in \[1, 1008\], got 2000"):
        TextGenerator(LLADA, CHAT, GREEDY, buckets=(64, 2000))
    with pytest.raises(ValueError, match="gen_length is 2048, but the model's context has 1024"):
        TextGenerator(LLADA, CHAT, recipe("confidence", gen_length=2048))

    answer = TextGenerator(LLADA, CHAT, GREEDY)
    assert answer([]) == []
    for prompts in ("w1", {"role": "user", "content": "w1"}, None):
        with pytest.raises(TypeError, match=r"write \[prompt\]"):
            answer(prompts)  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(TypeError, match="prompt 1 must be a text or a list of messages, got 7"):
        answer(["w1", 7])  # type: ignore[list-item]  # the mistake meant
    with pytest.raises(TypeError, match="prompt 0 is a single message"):
        answer([{"role": "user", "content": "w1"}])  # type: ignore[list-item]  # the mistake meant
    with pytest.raises(TypeError, match="prompt 0: a message is"):
        answer([[{"role": "user"}]])
    with pytest.raises(ValueError, match="prompt 0 is a conversation without a message"):
        answer([[]])
    with pytest.raises(ValueError, match=r"prompt 1 has 1009 tokens; at most 1008 fit .* context of 1024"):
        TextGenerator(LLADA, BARE, GREEDY)(["w1", words([1] * 1009)])


def test_failed_rows_are_named_and_the_others_kept():
    poisoned = jax.tree.map(jnp.copy, LLADA)
    poisoned.embed[...] = LLADA.embed[...].at[7].set(jnp.nan)  # whoever reads w7 gets no finite logits
    answer = TextGenerator(poisoned, BARE, GREEDY, batch_size=4)
    prompts = ["w1", "w2 w7", "w3 w4"]
    with pytest.raises(RepliesError, match=r"prompts \[1\]: .* not finite") as caught:
        answer(prompts)
    good, bad, also_good = caught.value.replies
    assert bad.status is Status.NON_FINITE
    expected = TextGenerator(LLADA, BARE, GREEDY, batch_size=4).run(prompts)
    assert [good, also_good] == [expected[0], expected[2]]
    with pytest.raises(DecodeError, match="not finite"):
        answer.infill("w7 [gap:2]")


def test_progress_bar(capsys):
    for progress, shown in [(False, False), (None, False), (True, True)]:  # None: this is no terminal
        TextGenerator(LLADA, BARE, GREEDY, batch_size=4, progress=progress)(["w1", "w2", "w3"])
        assert ("3/3" in capsys.readouterr().err) == shown


def test_fits_says_whether_a_run_would_refuse():
    generator = TextGenerator(LLADA, CHAT, GREEDY)
    room = LLADA.config.max_length - GEN_LENGTH - len(generator.encode(""))
    assert generator.fits(words([7] * room))
    assert not generator.fits(words([7] * (room + 1)))
