"""Where users read, nothing private is used: notebooks, README and docs import from `depcap_jax` alone."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_checkpoints import REPOSITORY

import depcap_jax

PAGES = [
    *sorted((REPOSITORY / "notebooks").glob("*.ipynb")),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]


def programs(path: Path) -> Iterator[str]:
    """The Python of a page, a cell or a block at a time."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            yield re.sub(r"^(\s*)[%!].*$", r"\1pass", "".join(cell["source"]), flags=re.MULTILINE)


def private_names(program: str) -> list[str]:
    """What a program uses of the package that is not one of its public names."""
    wrong = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "depcap_jax":
            if node.module != "depcap_jax":
                wrong.append(node.module)
            wrong += [alias.name for alias in node.names if alias.name not in depcap_jax.__all__]
        elif isinstance(node, ast.Import):
            wrong += [a.name for a in node.names if a.name.startswith("depcap_jax.")]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id in ("dc", "depcap_jax") and node.attr not in depcap_jax.__all__:
                wrong.append(node.attr)
            if node.attr.startswith("_") and not node.attr.startswith("__"):
                wrong.append(node.attr)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_uses_public_names_only(path):
    for program in programs(path):
        assert private_names(program) == []


def test_private_names_are_seen():
    assert private_names("from depcap_jax.decoding.select import TopOne") == ["depcap_jax.decoding.select"]
    assert private_names("import depcap_jax.cli") == ["depcap_jax.cli"]
    assert private_names("import depcap_jax as dc\ndc.nothing") == ["nothing"]
    assert private_names("from depcap_jax import nothing") == ["nothing"]
    assert private_names("f._cache_size()") == ["_cache_size"]
    assert private_names("import depcap_jax as dc\ndc.generate\ndc.__all__") == ["__all__"]


def test_a_policy_in_five_steps(monkeypatch):
    """The steps of CONTRIBUTING.md hold: its example is a policy that decodes."""
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert re.findall(r"^(\d)\. ", text.split("in five steps")[1], re.MULTILINE)[:5] == list("12345")
    (example,) = programs(REPOSITORY / "CONTRIBUTING.md")
    scope: dict[str, object] = {}
    exec(compile(example, "CONTRIBUTING.md", "exec"), scope)
    reply = scope["reply"]
    assert isinstance(reply, depcap_jax.Reply)
    assert reply.nfe > 0
