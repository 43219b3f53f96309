"""The documentation's Python runs as it stands, a page's blocks in order; its reference is whole.

A block with a title (`python title="..."`) needs what no test has, a large model say: it is only compiled.
"""

from __future__ import annotations

import collections
import re
import shlex
from pathlib import Path

import pytest

import depcap_jax
from depcap_jax.cli import build_parser

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
# These compile programs that no other test has: eight devices, an export, an evaluation, single turns.
LONGER = {"evaluation.md", "loop.md", "meshes.md", "serving.md"}
BLOCK = re.compile(r"^```python(?P<title> [^\n]*)?\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)


def with_code(names: set[str]) -> list[str]:
    return [name for name, text in PAGES.items() if BLOCK.search(text) and name in names]


def run(name: str) -> None:
    scope: dict[str, object] = {}
    for block in BLOCK.finditer(PAGES[name]):
        line = PAGES[name].count("\n", 0, block.start("code"))
        program = compile("\n" * line + block["code"], name, "exec")
        if not block["title"]:
            exec(program, scope)


@pytest.mark.parametrize("name", with_code(PAGES.keys() - LONGER))
def test_code_blocks_run(name, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    run(name)
    assert capsys.readouterr().out.strip()


@pytest.mark.compiler
@pytest.mark.parametrize("name", with_code(LONGER))
def test_longer_code_blocks_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    run(name)


def test_blocks_are_seen():
    assert len(with_code(set(PAGES))) >= 8
    assert set(with_code(LONGER)) == LONGER
    for name, text in PAGES.items():
        assert text.count("```python") == len(BLOCK.findall(text)), name


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_understood(name):
    """Those in blocks, and those in the text that have options; what may be left out stands for itself."""
    for line in re.findall(r"^depcap .*$|(?<=`)depcap [\w-]+ [^`]*--[^`]*(?=`)", PAGES[name], re.MULTILINE):
        words = shlex.split(line, comments=True)[1:]
        if "COMMAND" not in words and "--help" not in words:
            assert callable(build_parser().parse_args(words).run), line


def test_files_that_pages_name_exist():
    """Paths in backticks, from the repository's root."""
    cards = (ROOT / "depcap_jax/tiny").glob("*/README.md")
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *cards, ROOT / "benchmarks/README.md"):
        for name in re.findall(r"`((?:\w+/)+\w+\.\w+)`", page.read_text(encoding="utf-8")):
            if (ROOT / name).parts[len(ROOT.parts)] in {folder.name for folder in ROOT.iterdir()}:
                assert (ROOT / name).exists(), f"{page} names {name}"


def test_the_reference_has_every_public_name_once():
    told: collections.Counter[str] = collections.Counter()
    for path in (ROOT / "docs/api").glob("*.md"):
        told.update(re.findall(r"^::: depcap_jax\.(\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == collections.Counter(depcap_jax.__all__)


def test_every_recipe_has_its_equation_and_its_paper():
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## )", PAGES["recipes.md"], re.DOTALL | re.MULTILINE))
    for recipe in depcap_jax.RECIPES:
        text = sections[recipe] if recipe != "depcap" else sections["depga"] + sections["cap"]
        assert "$$" in text, recipe
        assert re.search(r"arXiv:\d{4}\.\d{5}|Fast-dLLM|same paper|^\nOurs\.", text), recipe


def test_every_setting_of_a_recipe_is_told():
    for recipe in depcap_jax.RECIPES:
        for name in depcap_jax.recipe_settings(recipe):
            assert f"`{name}`" in PAGES["recipes.md"], f"{recipe}: {name}"
