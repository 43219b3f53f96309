"""The README's Python runs as it stands, its commands exist, its pictures are there."""

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


@pytest.mark.parametrize("line", re.findall(r"^depcap .*$", README, re.MULTILINE))
def test_commands_are_understood(line):
    arguments = build_parser().parse_args(shlex.split(line, comments=True)[1:])
    assert callable(arguments.run)


@pytest.mark.parametrize("path", re.findall(r"!\[[^]]*\]\(([^)]+)\)", README))
def test_pictures_are_there(path):
    assert (ROOT / path).is_file()
