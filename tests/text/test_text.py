from __future__ import annotations

import dataclasses
import importlib
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from depcap_jax.checkpoints.loading import load
from depcap_jax.checkpoints.tokenizer import MissingTokenizerError, load_tokenizer
from depcap_jax.decoding.generate import generate
from depcap_jax.decoding.recipes import recipe
from depcap_jax.decoding.state import DecodeError, Status
from depcap_jax.text import generator as text_module
from depcap_jax.text import infill
from depcap_jax.text.codec import Codec, parse_template
from depcap_jax.text.generator import RepliesError, TextGenerator
from training import vocabulary as tiny_tokenizer

jitted_generate: Any = importlib.import_module("depcap_jax.decoding.generate")._generate
jitted_fill: Any = infill._fill

GOLDEN = Path(__file__).parents[1] / "golden"
EOS, MASK, GEN_LENGTH = 509, 510, 16
# LLaDA's own template adds the assistant's header whether it is asked to or not; so does this one.
CHAT = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}<assistant> "
)
CONFIG = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, threshold=0.3)


@pytest.fixture(scope="module")
def model():
    return load(GOLDEN / "llada")[0]


@pytest.fixture(scope="module")
def dream():
    return load(GOLDEN / "dream")[0]


@pytest.fixture(scope="module")
def tokenizer():
    """Words w0, w1, ... for the ids of the golden models, split and joined at spaces."""
    words = [f"w{index}" for index in range(512)]
    words[500:504] = ["<user>", "<assistant>", "<system>", "<unk>"]
    words[EOS], words[MASK] = "<eos>", "<mask>"
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    special = [*words[500:504], "<eos>", "<mask>"]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("w", " w"), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<eos>",
        pad_token="<eos>",
        mask_token="<mask>",
        chat_template=CHAT,
    )


@pytest.fixture(scope="module")
def bare(tokenizer):
    """The same without a chat template."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<eos>")


def ids_to_text(ids) -> str:
    return " ".join(f"w{index}" for index in ids)


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """Nine prompts of 1 to 60 tokens, unsorted, two of one length."""
    draw = np.random.default_rng(7)
    lengths = [5, 60, 1, 31, 5, 17, 44, 33, 9]
    return [ids_to_text(draw.integers(0, 500, length)) for length in lengths]


@pytest.fixture(scope="module")
def answered(model, bare, prompts):
    """The replies, and how many compilations they took: batches of 4, two of them full."""
    before = jitted_generate._cache_size()
    replies = TextGenerator(model, bare, CONFIG, batch_size=4).run(prompts)
    return replies, jitted_generate._cache_size() - before


def test_answers_are_those_of_generate_and_in_order(model, bare, prompts, answered):
    replies, _ = answered
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = bare(prompt)["input_ids"]
        row = np.zeros((1, 64), np.int32)
        row[0, : len(ids)] = ids
        result = generate(model, row, np.asarray([len(ids)]), config=CONFIG)
        alone = jax.tree.map(lambda x: x[0].tolist(), result)
        assert list(reply.tokens) == alone.tokens[: alone.lengths]
        assert list(reply.commit_steps) == alone.commit_step[: alone.lengths]
        assert reply.nfe == alone.nfe
        assert list(reply.block_sizes) == [size for size in alone.block_sizes if size]
        assert (reply.prompt_length, reply.status) == (len(ids), Status.OK)
        assert reply.text == bare.decode(reply.tokens, skip_special_tokens=True)
        assert EOS not in reply.tokens
    assert len({reply.text for reply in replies}) == len(prompts)


def test_many_lengths_share_few_compilations(model, bare, prompts, answered):
    replies, compilations = answered
    assert compilations == 2  # widths 64 and 32; the ninth prompt's batch is padded to four rows
    before = jitted_generate._cache_size()
    other = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, threshold=0.31)
    TextGenerator(model, bare, other, batch_size=4).run(prompts)
    # Three prompts fit into one batch: they are padded to four rows, which are compiled already.
    texts = TextGenerator(model, bare, CONFIG, batch_size=4)(prompts[:1] + prompts[2:4])
    assert jitted_generate._cache_size() == before
    assert texts == [replies[index].text for index in (0, 2, 3)]


def test_chat_template_is_used_if_there_is_one(model, tokenizer, bare):
    def ids(*arguments, prompt):
        return Codec(*arguments).encode_prompt(prompt, "prompt")

    conversation = [{"role": "system", "content": "w1"}, {"role": "user", "content": "w2 w3"}]
    assert ids(tokenizer, 512, prompt="w2 w3") == [500, 2, 3, 501]
    assert ids(tokenizer, 512, True, prompt="w2 w3") == [500, 2, 3, 501]
    assert ids(tokenizer, 512, False, prompt="w2 w3") == [2, 3]
    assert ids(bare, 512, prompt="w2 w3") == [2, 3]
    assert ids(tokenizer, 512, prompt=conversation) == [502, 1, 500, 2, 3, 501]
    assert ids(tokenizer, 512, prompt="") == [500, 501]
    assert ids(bare, 512, prompt="") == []
    assert ids(bare, 512, prompt="w1 <mask>") == [1, MASK]
    with pytest.raises(ValueError, match="no chat template"):
        TextGenerator(model, bare, CONFIG, chat=True)
    with pytest.raises(ValueError, match="needs a chat template, but the tokenizer has none"):
        ids(bare, 512, prompt=conversation)
    with pytest.raises(ValueError, match="needs a chat template, but chat is False"):
        ids(tokenizer, 512, False, prompt=conversation)
    with pytest.raises(ValueError, match=r"token id 3; .* \[0, 3\)"):
        ids(bare, 3, prompt="w2 w3")


def test_chat_and_bare_prompts_reach_the_model(model, tokenizer, bare):
    chat = TextGenerator(model, tokenizer, CONFIG, batch_size=4)
    plain = TextGenerator(model, bare, CONFIG, batch_size=4)
    asked = chat.run(["w2 w3", [{"role": "user", "content": "w2 w3"}], "", "w4"])
    written = plain.run(["<user> w2 w3 <assistant>", "<user> <assistant>", "", "w4"])
    assert asked[0] == asked[1] == written[0]
    assert asked[2] == written[1]
    assert [reply.prompt_length for reply in written] == [4, 2, 0, 1]
    assert all(reply.status is Status.OK and reply.nfe > 0 for reply in written)


def test_samples_do_not_depend_on_the_batch(model, bare):
    config = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, temperature=1.0)
    prompts, key = ["w1 w2", "w1 w2", "w3", "w4 w5 w6"], jax.random.key(3)
    together = TextGenerator(model, bare, config, batch_size=4, key=key).run(prompts)
    alone = TextGenerator(model, bare, config, batch_size=1, key=key).run(prompts)
    assert [reply.tokens for reply in together] == [reply.tokens for reply in alone]
    assert together[0].tokens != together[1].tokens
    raw = TextGenerator(model, bare, config, batch_size=4, key=jax.random.PRNGKey(3)).run(prompts)
    other = TextGenerator(model, bare, config, batch_size=4, key=jax.random.key(4)).run(prompts)
    assert raw == together != other
    with pytest.raises(ValueError, match="needs a key"):
        TextGenerator(model, bare, config)


def test_wrong_arguments_are_named(model, tokenizer, bare):
    with pytest.raises(MissingTokenizerError, match="no tokenizer"):
        TextGenerator(model, None, CONFIG)
    with pytest.raises(TypeError, match="tokenizer must be"):
        TextGenerator(model, tokenizer.backend_tokenizer, CONFIG)
    with pytest.raises(TypeError, match=r"model must be a model, .* got tuple"):
        TextGenerator((model, tokenizer), tokenizer, CONFIG)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="config must be a DecodeConfig"):
        TextGenerator(model, tokenizer, "depcap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"batch_size .* got 0"):
        TextGenerator(model, tokenizer, CONFIG, batch_size=0)
    with pytest.raises(ValueError, match=r"buckets .* in \[1, 1008\], got 2000"):
        TextGenerator(model, tokenizer, CONFIG, buckets=(64, 2000))
    with pytest.raises(ValueError, match="gen_length is 2048, but the model's context has 1024"):
        TextGenerator(model, tokenizer, recipe("confidence", gen_length=2048))

    answer = TextGenerator(model, tokenizer, CONFIG)
    assert answer([]) == []
    for prompts in ("w1", {"role": "user", "content": "w1"}, None):
        with pytest.raises(TypeError, match=r"write \[prompt\]"):
            answer(prompts)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="prompt 1 must be a text or a list of messages, got 7"):
        answer(["w1", 7])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="prompt 0 is a single message"):
        answer([{"role": "user", "content": "w1"}])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="prompt 0: a message is"):
        answer([[{"role": "user"}]])
    with pytest.raises(ValueError, match="prompt 0 is a conversation without a message"):
        answer([[]])
    with pytest.raises(ValueError, match=r"prompt 1 has 1009 tokens; at most 1008 fit .* context of 1024"):
        TextGenerator(model, bare, CONFIG)(["w1", ids_to_text([1] * 1009)])


def test_padding_widths():
    buckets = text_module._prompt_buckets
    assert buckets(1024, 16, None) == (32, 64, 128, 256, 512, 1008)
    assert buckets(40, 16, None) == (24,)
    assert buckets(16, 16, None) == (0,)
    assert buckets(1024, 16, (100, 50)) == (50, 100, 1008)


def test_failed_rows_are_named_and_the_others_kept(model, bare):
    poisoned = jax.tree.map(jnp.copy, model)
    poisoned.embed[...] = model.embed[...].at[7].set(jnp.nan)  # whoever reads w7 gets no finite logits
    answer = TextGenerator(poisoned, bare, CONFIG, batch_size=4)
    prompts = ["w1", "w2 w7", "w3 w4"]
    with pytest.raises(RepliesError, match=r"prompts \[1\]: .* not finite") as caught:
        answer(prompts)
    good, bad, also_good = caught.value.replies
    assert bad.status is Status.NON_FINITE
    expected = TextGenerator(model, bare, CONFIG, batch_size=4).run(prompts)
    assert [good, also_good] == [expected[0], expected[2]]
    with pytest.raises(DecodeError, match="not finite"):
        answer.infill("w7 [gap:2]")


def test_progress_bar(model, bare, capsys):
    for progress, shown in [(False, False), (None, False), (True, True)]:  # None: this is no terminal
        TextGenerator(model, bare, CONFIG, batch_size=4, progress=progress)(["w1", "w2", "w3"])
        assert ("3/3" in capsys.readouterr().err) == shown


TEMPLATES = (["w5 w6", 3, "w7 <mask> w8", 1, "w9 <eos> w10", 4, "w11"], [2, "w7 <mask>", 2], [5])


@pytest.mark.parametrize(("family", "cache"), [("llada", "none"), ("llada", "prefix"), ("dream", "dual")])
def test_infill_leaves_the_rest_untouched(family, cache, model, dream, bare):
    generator = TextGenerator(
        model if family == "llada" else dream, bare, recipe("depcap", l_max=16, gen_length=64, cache=cache)
    )
    before = jitted_fill._cache_size()
    for parts in TEMPLATES:
        result = generator.infill(parts)
        at = 0
        for part in parts:
            if isinstance(part, int):
                assert MASK not in result.tokens[at : at + part]
                at += part
            else:
                ids = bare(part)["input_ids"]
                assert list(result.tokens[at : at + len(ids)]) == ids
                at += len(ids)
        assert at == len(result.tokens)
        gaps = iter(result.fillings)
        assert result.text == "".join(part if isinstance(part, str) else next(gaps) for part in parts)
        assert next(gaps, None) is None
        assert 1 <= result.nfe <= sum(part for part in parts if isinstance(part, int))
    assert jitted_fill._cache_size() == before + 1


def test_infill_of_one_gap_at_the_end_is_generation(model, tokenizer):
    config = dataclasses.replace(CONFIG, stop_at_eos=False)
    generator = TextGenerator(model, tokenizer, config, batch_size=4)
    reply = generator.run(["w2 w3", "w4", "w5"])[0]
    filled = generator.infill("[gap:16]", prompt="w2 w3")
    assert (filled.tokens[: len(reply.tokens)], filled.nfe) == (reply.tokens, reply.nfe)


def test_templates_are_checked(model, bare):
    assert parse_template("a [gap:3]b[gap:12]") == ["a ", 3, "b", 12, ""]
    assert parse_template(("a", 1, 2)) == ["a", 1, 2]
    for wrong in ("no gap", ["no gap"], [], "[gap:0]", ["a", 0], ["a", -1]):
        with pytest.raises(ValueError, match="gap"):
            parse_template(wrong)
    for wrong in (7, None, ["a", 1.5], ["a", True], [None]):
        with pytest.raises(TypeError, match="template"):
            parse_template(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has 1025 tokens; the model's context has 1024"):
        TextGenerator(model, bare, CONFIG).infill(["w1", 1024])


def test_fillings_read_as_in_their_place(tmp_path):
    tiny_tokenizer.save(tmp_path)
    codec = Codec(load_tokenizer(tmp_path), 512)
    (end,) = codec.encode_part(tiny_tokenizer.EOS)

    def fill(*parts: str | int, gaps: list[str]) -> str:
        written = [f"{gaps[part]}{tiny_tokenizer.EOS}" if isinstance(part, int) else part for part in parts]
        ids = [codec.encode_part(text) for text in written]
        fillings = codec.read_fillings(parts, ids, (end,))
        return "".join(fillings[part] if isinstance(part, int) else part for part in parts)

    gaps = ["1 2", "many apples"]
    assert fill("5 + 7 =", 0, ". How", 1, "?", gaps=gaps) == "5 + 7 = 12. How many apples?"
    assert fill("5 + 7 = ", 0, " . How ", 1, "?", gaps=gaps) == "5 + 7 = 12 . How many apples?"
    assert fill(0, " = 5 + 7", gaps=gaps) == "12 = 5 + 7"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_ends_as_a_run_does(model, tokenizer, prompts, temperature):
    config = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, temperature=temperature)
    generator = TextGenerator(model, tokenizer, config, key=jax.random.key(3))
    partials = list(generator.stream(prompts[0]))
    (reply,) = generator.run(prompts[:1])
    last = partials[-1]
    assert last.text == reply.text
    assert [partial.snapshot.nfe for partial in partials] == list(range(1, reply.nfe + 1))
    assert tuple(last.snapshot.commit_step[: len(reply.tokens)]) == reply.commit_steps
    parallel = [np.sort(s.confidence[s.commit_step == s.nfe])[:-1] for s in (p.snapshot for p in partials)]
    # All that is committed together, but for the best, has passed the threshold.
    assert (np.concatenate(parallel) >= 0.9).all() or temperature > 0
    for before, after in itertools.pairwise(partial.snapshot for partial in partials):
        settled = before.commit_step > 0
        assert (after.tokens[settled] == before.tokens[settled]).all()
        assert set(after.commit_step[~settled]) <= {0, after.nfe}
        assert after.nfe in after.commit_step
        assert (np.isnan(after.confidence) == (after.commit_step == 0)).all()
        assert after.block[0] <= np.argmax(after.commit_step == after.nfe) < after.block[1]


def test_open_positions_read_as_underscores(tokenizer):
    codec = Codec(tokenizer, 512)
    tokens, steps = np.array([5, MASK, MASK, 8, 9, EOS, 7]), np.array([1, 0, 0, 2, 1, 3, 1])
    pieces = codec.read_partial(tokens, steps, (EOS,))
    assert pieces == [("w5", 1), ("__", 0), (" w8", 2), (" w9", 1)]
    assert codec.read_partial(tokens, 0 * steps, (EOS,)) == []


def test_preparing_compiles_what_a_run_needs_and_decodes_nothing(model, tokenizer, prompts):
    config = dataclasses.replace(CONFIG, gen_length=GEN_LENGTH - 1)  # no other test's program
    generator = TextGenerator(model, tokenizer, config, batch_size=2)
    before = jitted_generate._cache_size()
    assert generator.prepare(prompts) > 0
    compiled = jitted_generate._cache_size()
    assert compiled > before
    generator.run(prompts)
    assert jitted_generate._cache_size() == compiled


def test_fits_says_whether_a_run_would_refuse(model, tokenizer):
    generator = TextGenerator(model, tokenizer, CONFIG)
    room = model.config.max_length - GEN_LENGTH
    words = room - len(Codec(tokenizer, 512).encode_prompt("", "prompt"))
    assert generator.fits(ids_to_text([7] * words))
    assert not generator.fits(ids_to_text([7] * (words + 1)))
