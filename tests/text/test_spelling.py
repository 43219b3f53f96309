"""How ids read as text when a character's bytes are spread over tokens that come in any order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from byte_tokenizer import EOS, MASK, SAMPLE, byte_tokenizer, bytes_of
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast
from word_tokenizer import word_tokenizer

from depcap_jax.text.codec import Codec
from depcap_jax.text.spelling import spell, spell_runs, token_text
from training import vocabulary as tiny_tokenizer

MERGES = st.sampled_from([0, 60])  # bare bytes, and tokens that hold characters and parts of them
TEXTS = st.text(SAMPLE + "\N{REPLACEMENT CHARACTER}\n", max_size=12)


@st.composite
def answers(draw) -> tuple[int, list[int], list[int]]:
    """A tokenizer, the ids of a text or of random bytes, and the pass at which each was committed."""
    merges = draw(MERGES)
    written = TEXTS.map(lambda text: byte_tokenizer(merges)(text)["input_ids"])
    ids = draw(written | st.lists(st.integers(0, 255 + merges), max_size=12))
    return merges, ids, draw(st.lists(st.integers(1, 5), min_size=len(ids), max_size=len(ids)))


def read(merges: int, ids: list[int], steps: list[int]) -> list[tuple[str, int]]:
    codec = Codec(byte_tokenizer(merges), 512)
    return codec.read_partial(np.array([*ids, EOS, 5]), np.array([*steps, 1, 1]), (EOS,))


@settings(deadline=None)
@given(answers())
def test_whatever_the_order_of_commits_the_last_text_is_the_tokenizers_own(answer):
    merges, ids, steps = answer
    pieces = read(merges, ids, steps)
    assert "".join(text for text, _ in pieces) == byte_tokenizer(merges).decode(ids, skip_special_tokens=True)
    assert [step for _, step in pieces] == [step for step, _ in itertools.groupby(steps)]


@settings(deadline=None)
@given(answers(), st.integers(0, 5))
def test_on_the_way_all_that_is_readable_is_read(answer, now):
    """Each stretch between open positions reads as its bytes do, with U+FFFD where some are missing."""
    merges, ids, steps = answer
    shown = [step if step <= now else 0 for step in steps]
    last = max((index + 1 for index, step in enumerate(shown) if step), default=0)
    pairs = zip(ids[:last], shown[:last], strict=True)
    expected = ""
    for is_open, group in itertools.groupby(pairs, key=lambda pair: pair[1] == 0):
        stretch = [token for token, _ in group]
        there = b"".join(bytes_of(token, merges) for token in stretch)
        expected += "_" * len(stretch) if is_open else there.decode(errors="replace")
    text = "".join(text for text, _ in read(merges, ids, shown))
    assert text == expected


def test_a_character_comes_right_once_its_bytes_are_there():
    ids = byte_tokenizer(0)("aé🍎b")["input_ids"]  # 1 + 2 + 4 + 1 bytes
    commits = np.array([2, 1, 3, 2, 1, 4, 3, 1])
    shown = [
        "".join(text for text, _ in read(0, ids, np.where(commits <= t, commits, 0).tolist()))
        for t in (1, 2, 3, 4)
    ]
    assert shown == ["_�__�__b", "a�_�__b", "aé�_�b", "aé🍎b"]


@settings(deadline=None)
@given(answers())
def test_pieces_put_together_are_the_text_whatever_the_bytes(answer):
    merges, ids, _ = answer
    pieces = spell(ids, byte_tokenizer(merges))
    assert len(pieces) == len(ids)
    assert "".join(pieces) == byte_tokenizer(merges).decode(ids)


def test_a_character_stands_at_its_last_token_and_not_beyond_a_missing_one():
    tokenizer = byte_tokenizer(0)
    first, second = tokenizer("é")["input_ids"]
    (letter,) = tokenizer("a")["input_ids"]
    assert spell([first, second, letter, EOS], tokenizer) == ["", "é", "a", "<eos>"]
    assert spell([first, -1, second, letter], tokenizer) == ["�", "", "�", "a"]
    assert spell([letter, first, -1, -1, letter], tokenizer) == ["a", "�", "", "", "a"]


def test_pieces_put_together_are_the_text():
    encoder = tiny_tokenizer.build()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=encoder)
    text = "Ida had 28 coins. Kim came to Ida.\n#### 26"
    tokens = encoder.encode(text).ids
    pieces = spell(tokens, tokenizer)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == text
    assert spell([tokens[0], -1, tokens[1]], tokenizer) == ["Ida", "", " had"]


def test_tokens_without_a_tokenizer_are_numbers():
    assert spell([7, -1], None) == ["#7", ""]
    assert token_text(7, None) == "#7"
    assert [token_text(token, None) for token in (-1, 0)] == ["", "#0"]


def test_a_token_by_itself():
    words = word_tokenizer(chat=False)
    assert [token_text(token, words) for token in (-1, 5, MASK)] == ["", "w5", "<mask>"]
    # A token that reads as nothing by itself goes by its name.
    silent = Tokenizer(models.WordLevel({"▁": 0}, unk_token="▁"))
    silent.decoder = decoders.Replace("▁", "")
    assert token_text(0, PreTrainedTokenizerFast(tokenizer_object=silent)) == "▁"


def test_a_tokenizer_that_rewrites_what_it_wrote_loses_nothing():
    def decode(ids: list[int]) -> str:
        return " ".join({1: "I", 2: "go", 3: "ed", 4: "home"}[token] for token in ids).replace(
            "go ed", "went"
        )

    assert "".join(spell_runs([[1], [2], [3], [4]], decode)) == "I went home"
    assert spell_runs([[1, 2], None, [3, 4]], decode) == ["I go", "", "ed home"]


def test_open_positions_read_as_underscores():
    codec = Codec(word_tokenizer(chat=True), 512)
    tokens, steps = np.array([5, MASK, MASK, 8, 9, EOS, 7]), np.array([1, 0, 0, 2, 1, 3, 1])
    pieces = codec.read_partial(tokens, steps, (EOS,))
    assert pieces == [("w5", 1), ("__", 0), (" w8", 2), (" w9", 1)]
    assert codec.read_partial(tokens, 0 * steps, (EOS,)) == []


@pytest.mark.parametrize("merges", [0, 60])
def test_the_sample_has_characters_of_several_tokens(merges):
    """Without them the tests above would show nothing."""
    tokenizer = byte_tokenizer(merges)
    alone = [tokenizer.decode([token]) for token in tokenizer(SAMPLE)["input_ids"]]
    assert sum("\N{REPLACEMENT CHARACTER}" in text for text in alone) >= 4
