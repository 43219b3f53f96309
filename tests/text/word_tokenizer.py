"""Words w0, w1, ... for the ids of the golden models, and decoders small enough for many tests to share."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from depcap_jax.decoding.recipes import recipe

EOS, MASK, VOCAB_SIZE = 509, 510, 512
GEN_LENGTH = 16
GREEDY = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, threshold=0.3)
SAMPLING = recipe("confidence", block_length=8, gen_length=GEN_LENGTH, threshold=0.3, temperature=1.0)

# LLaDA's own template adds the assistant's header whether it is asked to or not; so does this one.
_CHAT = (
    "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }} {% endfor %}<assistant> "
)


@functools.cache
def word_tokenizer(*, chat: bool) -> PreTrainedTokenizerFast:
    """Split and joined at spaces, with a chat template or without."""
    words = [f"w{index}" for index in range(VOCAB_SIZE)]
    words[500:504] = ["<user>", "<assistant>", "<system>", "<unk>"]
    words[EOS], words[MASK] = "<eos>", "<mask>"
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    special = [*words[500:504], "<eos>", "<mask>"]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("w", " w"), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    names = {"eos_token": "<eos>", "pad_token": "<eos>", "mask_token": "<mask>"}
    template = {"chat_template": _CHAT} if chat else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **template)


def words(ids: Iterable[int]) -> str:
    """The text of some ids."""
    return " ".join(f"w{index}" for index in ids)


@functools.cache
def word_prompts() -> tuple[str, ...]:
    """Nine prompts of 1 to 60 tokens, unsorted, two of one length."""
    draw = np.random.default_rng(7)
    lengths = [5, 60, 1, 31, 5, 17, 44, 33, 9]
    return tuple(words(draw.integers(0, 500, length)) for length in lengths)
