"""Fixtures of the tests of the page: two decoders on one prompt, and a tokenizer full of markup."""

from __future__ import annotations

import pytest
from pages import EVIL, traced
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import depcap_jax as dc


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """A word an id for the small model, every other one of them markup."""
    words = [f"w{index}" if index % 2 else f"{index}{EVIL}" for index in range(512)]
    words[509], words[7] = "<eos>", "\n"
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="w1"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>")


@pytest.fixture(scope="module")
def results() -> list[dc.DecodeResult]:
    """Two decoders on one prompt."""
    settings = {"l_min": 3, "l_max": 8, "tau_low": 0.1, "tau_high": 0.5, "gamma": -9.0}
    return [traced("depcap", 24, 12, **settings), traced("vanilla", 24, 12, block_length=12)]
