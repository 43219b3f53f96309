"""Chat templates that are broken, or do not end: a sentence, soon."""

from __future__ import annotations

import copy
import sys
import threading

import pytest
from word_tokenizer import VOCAB_SIZE, word_tokenizer

from depcap_jax.text import templates
from depcap_jax.text.codec import Codec

BROKEN = {
    "a tag that is not closed": "{% for m in messages %}{{ m['content'] }}",
    "an unknown tag": "{% nothing %}",
    "an unknown filter": "{{ messages | nothing }}",
    "a wrong name": "{{ message.content.text.more }}",
    "a wrong type": "{{ 1 + messages }}",
    "a division": "{{ 1 / 0 }}",
    "its own complaint": "{{ raise_exception('roles must\\nalternate') }}",
    "a forbidden attribute": "{{ messages.__class__.__mro__ }}",
    "a call of itself": "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "too long a range": "{{ range(10 ** 9) | list }}",
    "no text": 3,
}

ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filters": "{% for i in range(99999) %}{{ range(99999) | map('string') | join }}{% endfor %}",
    "C's own loops": "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "macros": "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(60) }}",
}


def codec_with(template) -> Codec:
    tokenizer = copy.deepcopy(word_tokenizer(chat=True))
    tokenizer.chat_template = template
    return Codec(tokenizer, VOCAB_SIZE)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_template_is_one_line(name):
    with pytest.raises(ValueError, match="chat template") as refusal:
        codec_with(BROKEN[name]).encode_prompt("w1", "the prompt")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_template_is_stopped(name, monkeypatch):
    """On a thread, where no signal would be heeded."""
    monkeypatch.setattr(templates, "_SECONDS", 0.3)
    said = []

    def encode():
        try:
            codec_with(ENDLESS[name]).encode_prompt("w1", "the prompt")
        except ValueError as error:
            said.append(str(error))

    thread = threading.Thread(target=encode, daemon=True)
    thread.start()
    thread.join(60)
    assert said
    assert "chat template" in said[0]
    assert "0.3 seconds" in said[0]


def test_long_conversations_are_rendered_and_the_tracer_is_left_alone():
    turns = [{"role": role, "content": "w1"} for role in ("user", "assistant") * 1000]
    before = sys.gettrace()
    codec = codec_with("{% for m in messages %}{{ m.content }} {% endfor %}")
    assert codec.encode_prompt(turns, "the prompt") == [1] * 2000
    assert sys.gettrace() is before
