"""The README's Python runs as it stands, its commands exist, its links and pictures are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from depcap_jax.cli import build_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_has_code():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize("block", BLOCKS)
def test_code_blocks_run(block, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def test_it_is_short_and_begins_with_two_commands():
    assert len(README.splitlines()) <= 120
    lines = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    begin = "python3 -m venv .venv && . .venv/bin/activate && pip install"
    assert lines == [f"{begin} . && depcap demo\n", f'{begin} ".[test]" && pytest -n 2\n']


def test_commands_are_understood():
    lines = re.findall(r"(?<=`)depcap [\w-]+ [^`]*--[^`]*(?=`)", README)
    assert lines
    for line in lines:
        assert callable(build_parser().parse_args(shlex.split(line)[1:]).run), line


@pytest.mark.parametrize("link", re.findall(r"\]\((?!https:)([^)]+)\)", README))
def test_links_and_pictures_are_there(link):
    path, _, anchor = link.partition("#")
    assert (ROOT / path).is_file()
    if anchor:
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in [heading.lower().replace(" ", "-") for heading in headings]


def test_every_notebook_is_linked():
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"(notebooks/{path.name})" in README


def test_what_runs_where_is_as_its_page_has_it():
    section = README.split("## What runs where")[1].split("\n## ")[0]
    page = (ROOT / "docs/what-runs-where.md").read_text(encoding="utf-8")
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 7
    fits = page.split("## What fits")[1].split("\n## ")[0]
    device, model, found = "", "", {}
    for line in fits.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and "GB" in line:
            device, model = cells[0] or device, cells[1] or model  # a blank cell repeats the one above
            found[device, model, cells[2]] = cells[3]
    for row in rows:
        device, model, weights, batch, memory, speed = [cell.strip() for cell in row.strip("|").split("|")]
        assert found[device, model, weights].startswith(memory.removesuffix(" GB")), row
        assert (batch, speed) == ("1, 8", "not measured")
