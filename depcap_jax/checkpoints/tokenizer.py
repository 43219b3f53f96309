"""Tokenizers from a folder's files: no remote code, no network, no question to the user."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from depcap_jax.checkpoints.errors import CheckpointError, first_line
from depcap_jax.checkpoints.small_files import has_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)
"""What a tokenizer may be made of; the vocabulary is the first, or the last two together."""


def has_vocabulary(folder: Path) -> bool:
    """True if the folder's files are enough for a tokenizer; raises `CheckpointError` if one is no file."""
    names = [name for name in TOKENIZER_FILES if has_file(folder / name)]  # a pipe is refused, not ignored
    return "tokenizer.json" in names or {"vocab.json", "merges.txt"} <= set(names)


def copy_tokenizer_files(source: Path, target: Path) -> None:
    """Copies whatever describes a tokenizer from one folder to another."""
    for name in TOKENIZER_FILES:
        if has_file(source / name):
            shutil.copyfile(source / name, target / name)


def load_tokenizer(folder: Path, special: Collection[int] = ()) -> PreTrainedTokenizerBase | None:
    """The fast tokenizer that the folder's files describe, with its chat template; None without a vocabulary.

    `tokenizer.json` (LLaDA) stands alone; `vocab.json` with `merges.txt` (Dream) is Qwen2's byte-level BPE.
    Added tokens with an id in `special` become special ones, whatever the files call them.

    Raises:
      CheckpointError: if the files are there but cannot be understood.
    """
    if not has_vocabulary(folder):
        return None
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    # The classes are named here and not looked up from the folder: looking up is what runs its code.
    kind = PreTrainedTokenizerFast if has_file(folder / "tokenizer.json") else Qwen2Tokenizer
    try:
        tokenizer = kind.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        plain = [
            AddedToken(
                added.content,
                single_word=added.single_word,
                lstrip=added.lstrip,
                rstrip=added.rstrip,
                normalized=False,
                special=True,
            )
            for index, added in tokenizer.added_tokens_decoder.items()
            if index in special and not added.special
        ]
        tokenizer.add_tokens(plain, special_tokens=True)
        return tokenizer
    except Exception as error:  # the Rust tokenizers raise a bare Exception
        reason = first_line(error)
        raise CheckpointError(f"the tokenizer files in {folder} cannot be used: {reason}") from error
