"""The tokenizer of the embedded models: words, single digits and marks, as an ordinary `tokenizer.json`."""

from __future__ import annotations

import json
import os
import string
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from depcap_jax.tiny import words

EOS, MASK, BOS, USER, ASSISTANT, UNKNOWN = SPECIAL = (
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|startoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|unk|>",
)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] | trim }}<|endoftext|>"
    "{% else %}<|user|>{{ message['content'] | trim }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# A line break that indents is one token: the shape of a program then costs nothing extra.
_INDENT = "\n    "
_PIECE = r"\n {4}|\n|#{4}|[0-9]|[A-Za-z]+|[^\sA-Za-z0-9]"
_FRAME = (
    "How many does have has Go from to in steps Choose I choose of these order Shuffle Put first last "
    "Tell a story about and visit visits had met came Then gave thanked Now So Write code def return"
)


def tokens() -> list[str]:
    """Every token, by id."""
    tables = (
        words.NAMES,
        words.FRIENDS,
        words.THINGS,
        words.ANIMALS,
        words.GAINS,
        words.LOSSES,
        words.OPERATIONS,
    )
    known = [word for table in (*tables, words.LETTERS, words.FUNCTIONS) for word in table]
    marks = [*string.digits, *"+-*=.,?:()", "####", "\n", _INDENT]
    return list(dict.fromkeys([*SPECIAL, *marks, *_FRAME.split(), *known]))


def build() -> Tokenizer:
    """The tokenizer; decoding an encoded text of the task gives that text back."""
    ids = {token: index for index, token in enumerate(tokens())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), "isolated"),
            pre_tokenizers.Split(Regex(r"\A[^\S\n]+\z"), "removed"),
        ]
    )
    glue = [
        (r"\A(?!\n)", " "),  # a space before every token but line breaks; most of the rest takes some back
        (r"(?<=[0-9]) (?=[0-9])", ""),
        (r" (?=[.,?!:;()])", ""),
        (r"(?<=\() ", ""),
        (r"(?<=\n) (?=\S)", ""),
        (r"(?<=\n    ) ", ""),
        (r"\A ", ""),
    ]
    replaced = [decoders.Replace(Regex(pattern), content) for pattern, content in glue]
    tokenizer.decoder = decoders.Sequence([replaced[0], decoders.Fuse(), *replaced[1:]])
    return tokenizer


def save(folder: str | os.PathLike[str]) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json` into a folder."""
    build().save(str(Path(folder) / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 256,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "mask_token": MASK,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (Path(folder) / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
