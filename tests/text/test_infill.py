"""Gaps: everything else stays as it is, and a filling reads as it does in its place."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from byte_tokenizer import byte_tokenizer
from compilations import compilations
from small_models import small_model
from transformers import PreTrainedTokenizerFast
from word_tokenizer import EOS, GREEDY, MASK, SAMPLING, word_tokenizer

from depcap_jax.decoding.recipes import recipe
from depcap_jax.text.codec import Codec
from depcap_jax.text.generator import TextGenerator
from depcap_jax.text.infill import parse_template, read_fillings
from training import vocabulary as tiny_tokenizer

CHAT, BARE = word_tokenizer(chat=True), word_tokenizer(chat=False)
LLADA = small_model("llada")
TEMPLATES = (["w5 w6", 3, "w7 <mask> w8", 1, "w9 <eos> w10", 4, "w11"], [2, "w7 <mask>", 2], [5])


@pytest.mark.parametrize(
    ("family", "cache"),
    [("llada", "none"), pytest.param("llada", "prefix", marks=pytest.mark.compiler), ("dream", "dual")],
)
def test_infill_leaves_the_rest_untouched(family, cache):
    config = recipe("depcap", l_max=8, gen_length=64, cache=cache)
    generator = TextGenerator(small_model(family), BARE, config, special_tokens=True)
    with compilations() as compiled:
        for parts in TEMPLATES:
            result = generator.infill(parts)
            at = 0
            for part in parts:
                if isinstance(part, int):
                    assert MASK not in result.tokens[at : at + part]
                    at += part
                else:
                    ids = BARE(part)["input_ids"]
                    assert list(result.tokens[at : at + len(ids)]) == ids
                    at += len(ids)
            assert at == len(result.tokens)
            gaps = iter(result.fillings)
            assert result.text == "".join(part if isinstance(part, str) else next(gaps) for part in parts)
            assert next(gaps, None) is None
            assert 1 <= result.nfe <= sum(part for part in parts if isinstance(part, int))
    assert len(compiled) == 1, compiled


def test_infill_of_one_gap_at_the_end_is_generation():
    config = dataclasses.replace(GREEDY, stop_at_eos=False)
    generator = TextGenerator(LLADA, CHAT, config, batch_size=4)
    reply = generator.run(["w2 w3", "w4", "w5"])[0]
    filled = generator.infill("[gap:16]", prompt="w2 w3")
    assert (filled.tokens[: len(reply.tokens)], filled.nfe) == (reply.tokens, reply.nfe)


def test_special_tokens_around_a_gap_are_text_unless_they_are_meant():
    template = "<mask>[gap:2]<eos>"
    for meant, lengths in ((False, (6, 5)), (True, (1, 1))):
        filled = TextGenerator(LLADA, byte_tokenizer(0), GREEDY, special_tokens=meant).infill(template)
        before, after = filled.tokens[: lengths[0]], filled.tokens[lengths[0] + 2 :]
        assert filled.text == "<mask>" + filled.fillings[0] + "<eos>"
        assert len(after) == lengths[1]
        assert (MASK in before, EOS in after) == (meant, meant)


def test_another_key_fills_in_another_sample():
    generator = TextGenerator(LLADA, BARE, SAMPLING)
    first, again, second = (generator.infill("w1 [gap:8] w2", key=jax.random.key(seed)) for seed in (3, 3, 4))
    assert first == again != second


def test_templates_are_checked():
    assert parse_template("a [gap:3]b[gap:12]") == ["a ", 3, "b", 12, ""]
    assert parse_template(("a", 1, 2)) == ["a", 1, 2]
    for wrong in ("no gap", ["no gap"], [], "[gap:0]", ["a", 0], ["a", -1]):
        with pytest.raises(ValueError, match="gap"):
            parse_template(wrong)
    for wrong in (7, None, ["a", 1.5], ["a", True], [None]):
        with pytest.raises(TypeError, match="template"):
            parse_template(wrong)  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(ValueError, match="has 1025 tokens; the model's context has 1024"):
        TextGenerator(LLADA, BARE, GREEDY).infill(["w1", 1024])


def test_fillings_read_as_in_their_place():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer.build())
    codec = Codec(tokenizer, 512, special_tokens=True)
    (end,) = codec.encode_part(tiny_tokenizer.EOS)

    def fill(*parts: str | int, gaps: list[str]) -> str:
        written = [f"{gaps[part]}{tiny_tokenizer.EOS}" if isinstance(part, int) else part for part in parts]
        ids = [codec.encode_part(text) for text in written]
        fillings = iter(read_fillings(parts, ids, (end,), codec.decode))
        return "".join(next(fillings) if isinstance(part, int) else part for part in parts)

    gaps = ["1 2", "many apples"]
    assert fill("5 + 7 =", 0, ". How", 1, "?", gaps=gaps) == "5 + 7 = 12. How many apples?"
    assert fill("5 + 7 = ", 0, " . How ", 1, "?", gaps=gaps) == "5 + 7 = 12 . How many apples?"
    assert fill(0, " = 5 + 7", gaps=gaps) == "12 = 5 + 7"


def test_a_character_may_be_spread_over_gaps():
    codec = Codec(byte_tokenizer(0), 512)
    first, second = codec.encode_part("é")
    parts, before, after = ["caf", 1, 1, "!"], codec.encode_part("caf"), codec.encode_part("!")
    assert read_fillings(parts, [before, [first], [second], after], (), codec.decode) == ["", "é"]
    assert read_fillings(parts, [before, [first], [first], after], (), codec.decode) == ["�", "�"]
    assert read_fillings(["caf", 2], [before, [first, second]], (second,), codec.decode) == ["�"]
