"""Between text and ids: chat templates, and ids that do not belong to the model."""

from __future__ import annotations

import copy

import pytest
from word_tokenizer import MASK, VOCAB_SIZE, word_tokenizer

from depcap_jax.text.codec import Codec, MissingTokenizerError, Prompt, require_tokenizer

CHAT, BARE = word_tokenizer(chat=True), word_tokenizer(chat=False)
CONVERSATION = [{"role": "system", "content": "w1"}, {"role": "user", "content": "w2 w3"}]


def encode(codec: Codec, prompt: Prompt) -> list[int]:
    return codec.encode_prompt(prompt, "prompt")


def test_chat_template_is_used_if_there_is_one():
    templated, bare = Codec(CHAT, VOCAB_SIZE), Codec(BARE, VOCAB_SIZE)
    assert encode(templated, "w2 w3") == [500, 2, 3, 501]
    assert encode(Codec(CHAT, VOCAB_SIZE, True), "w2 w3") == [500, 2, 3, 501]
    assert encode(Codec(CHAT, VOCAB_SIZE, False), "w2 w3") == [2, 3]
    assert encode(bare, "w2 w3") == [2, 3]
    assert encode(templated, CONVERSATION) == [502, 1, 500, 2, 3, 501]
    assert encode(templated, "") == [500, 501]
    assert encode(bare, "") == []
    assert encode(bare, "w1 <mask>") == [1, MASK]


def test_template_that_asks_is_told_not_to_think():
    """As Qwen3's does; nothing changes for templates that do not ask."""
    asking = copy.deepcopy(BARE)
    asking.chat_template = (
        "<assistant> {% if enable_thinking is not defined or enable_thinking %}w9{% endif %}"
    )
    assert encode(Codec(asking, VOCAB_SIZE), "w2") == [501]


def test_what_cannot_be_encoded_is_named():
    with pytest.raises(ValueError, match="no chat template"):
        Codec(BARE, VOCAB_SIZE, True)
    with pytest.raises(ValueError, match="needs a chat template, but the tokenizer has none"):
        encode(Codec(BARE, VOCAB_SIZE), CONVERSATION)
    with pytest.raises(ValueError, match="needs a chat template, but chat is False"):
        encode(Codec(CHAT, VOCAB_SIZE, False), CONVERSATION)
    with pytest.raises(ValueError, match=r"token id 3; .* \[0, 3\)"):
        encode(Codec(BARE, 3), "w2 w3")
    with pytest.raises(ValueError, match=r"^prompt is not a text in UTF-8: 'caf\\udce9'$"):
        encode(Codec(BARE, VOCAB_SIZE), "caf\udce9")


def test_text_needs_a_tokenizer():
    assert require_tokenizer(BARE) is BARE
    with pytest.raises(MissingTokenizerError, match=r"no tokenizer.*tokenizer\.json"):
        Codec(None, VOCAB_SIZE)
    assert issubclass(MissingTokenizerError, ValueError)
    with pytest.raises(TypeError, match="tokenizer must be one of transformers, got Tokenizer"):
        Codec(BARE.backend_tokenizer, VOCAB_SIZE)  # type: ignore[arg-type]  # the mistake meant
    with pytest.raises(TypeError, match="chat must be True, False or None, got 'yes'"):
        Codec(BARE, VOCAB_SIZE, "yes")  # type: ignore[arg-type]  # the mistake meant
