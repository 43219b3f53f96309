"""Byte-level BPE, as LLaDA and Dream have it: the bytes of a character may be spread over several tokens."""

from __future__ import annotations

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SAMPLE = "Zoë naïvely ate 🍎🍏 and 苹果 at the café. 我爱苹果。 Ærø: déjà vu, 👩‍🚀! "
EOS, MASK = 509, 510


@functools.cache
def byte_tokenizer(merges: int) -> PreTrainedTokenizerFast:
    """One token per byte, and `merges` more that join frequent neighbours, parts of characters among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([SAMPLE] * 4, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    # Ids of their own up to the golden models' end-of-text and mask.
    fast.add_tokens([f"<unused {index}>" for index in range(len(fast), EOS)])
    fast.add_special_tokens({"eos_token": "<eos>", "mask_token": "<mask>"})
    return fast


@functools.cache
def halving_tokenizer() -> PreTrainedTokenizerFast:
    """Every token is the second byte of one character and the first of the next: none is whole in a token."""
    characters = {byte: character for character, byte in _bytes_of_characters().items()}
    halves = [
        characters[second] + characters[first] for first in range(0xC3, 0xCB) for second in range(0x80, 0xC0)
    ]
    tokens = {token: index for index, token in enumerate(halves[:EOS])}
    tokenizer = Tokenizer(models.WordLevel(tokens, unk_token=halves[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.add_special_tokens({"eos_token": "<eos>", "mask_token": "<mask>"})
    return fast


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """The byte that each character of the alphabet stands for: GPT-2's table."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def bytes_of(token: int, merges: int) -> bytes:
    """What a token stands for."""
    table = _bytes_of_characters()
    return bytes(table[character] for character in byte_tokenizer(merges).convert_ids_to_tokens(token))
