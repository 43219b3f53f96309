"""One legend of axis letters, in `depcap_jax.decoding`: every shape in prose is spelt with it."""

from __future__ import annotations

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_checkpoints import REPOSITORY

import depcap_jax.decoding

FILES = [path for top in ("depcap_jax", "training") for path in sorted((REPOSITORY / top).rglob("*.py"))]
LETTERS = re.findall(r"(?:^ {4}|  )([A-Z])  \w", depcap_jax.decoding.__doc__ or "", re.MULTILINE)


def prose(text: str) -> Iterator[str]:
    """The docstrings of a program, those of attributes too, and its comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def axis_letters(text: str) -> set[str]:
    """The capitals that stand alone inside square brackets."""
    shapes = (shape for words in prose(text) for shape in re.findall(r"\[([^\[\]]*)\]", words))
    return {letter for shape in shapes for letter in re.findall(r"\b[A-Z]\b", shape)}


def test_each_letter_of_the_legend_means_one_thing_and_is_used():
    assert [letter for letter, count in collections.Counter(LETTERS).items() if count > 1] == []
    used = set[str]().union(*(axis_letters(path.read_text(encoding="utf-8")) for path in FILES))
    assert set(LETTERS) == used
    page = (REPOSITORY / "docs" / "concepts.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([A-Z])` \|", page, re.MULTILINE) == LETTERS


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_no_file_has_letters_of_its_own(path: Path):
    text = path.read_text(encoding="utf-8")
    assert axis_letters(text) <= set(LETTERS)
    assert ("Axis letters" in text) == (path.parts[-2:] == ("decoding", "__init__.py"))


def test_letters_are_seen():
    assert axis_letters('"""Of x [B, X // 2] and\n[..., Z]."""\nfor i in y[Q]: ...  # [B or 1, W]') == set(
        "BXZW"
    )
