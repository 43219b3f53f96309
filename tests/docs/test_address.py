"""The project's address stands once, in pyproject.toml; badges and install lines agree with it.

`python tests/docs/test_address.py` rewrites them once it has changed.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ADDRESS = PROJECT["urls"]["Repository"]
GITHUB = "https://github.com/"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FILES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *NOTEBOOKS]


def with_address(text: str, address: str) -> str:
    """The text with this address in its Colab links, install lines and `git clone` lines."""
    if not re.fullmatch(rf"{GITHUB}[\w-]+/[\w.-]+", address):
        raise ValueError(f"Repository must be {GITHUB}OWNER/NAME, which Colab opens, got {address!r}")
    name = address.removeprefix(GITHUB)
    text = re.sub(r"(colab\.research\.google\.com/github)/[^/\s]+/[^/\s]+(/blob/)", rf"\1/{name}\2", text)
    return re.sub(r'(git\+|git clone )https://[^\s"\\`]+', rf"\1{address}", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_page_agrees_with_it(path):
    text = path.read_text(encoding="utf-8")
    assert with_address(text, ADDRESS) == text, "run `python tests/docs/test_address.py`"
    others = set(re.findall(rf"{GITHUB}[\w-]+/depcap[_-]jax", text)) - {ADDRESS}
    assert not others


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_opens_and_installs_from_it(path):
    text, name = path.read_text(encoding="utf-8"), ADDRESS.removeprefix(GITHUB)
    assert f"colab.research.google.com/github/{name}/blob/main/notebooks/{path.name}" in text
    assert re.search(rf"depcap_jax(\[[\w,-]+\])? @ git\+{re.escape(ADDRESS)}\W", text)


def test_another_address_changes_badges_and_install_lines_alone():
    old, new = f"{GITHUB}one/depcap_jax", f"{GITHUB}two/other.name"
    text = (
        "(https://colab.research.google.com/github/one/depcap_jax/blob/main/notebooks/a.ipynb) "
        f'%pip install -q \\"depcap_jax[plot] @ git+{old}\\"\n`git clone {old}`, {GITHUB}three/program'
    )
    changed = with_address(text, new)
    assert changed == text.replace("one/depcap_jax", "two/other.name")
    assert with_address(changed, old) == text
    with pytest.raises(ValueError, match="OWNER/NAME"):
        with_address(text, "https://example.org/depcap_jax")


if __name__ == "__main__":
    for chosen in FILES:
        before = chosen.read_text(encoding="utf-8")
        after = with_address(before, ADDRESS)
        if after != before:
            chosen.write_text(after, encoding="utf-8")
            print(f"rewritten: {chosen.relative_to(ROOT)}")
