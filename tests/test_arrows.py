"""Arrows between modules point one way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "depcap_jax"

MAY_IMPORT = {
    "settings": set(),
    "types": set(),
    "numerics": set(),
    "select": {"numerics", "settings"},
    "sampling": {"numerics", "select", "settings"},
    "partition": {"numerics", "select", "settings"},
    "caching": {"settings", "types"},
    "config": {"caching", "partition", "sampling", "select", "settings"},
    "defaults": {"config"},
    "decode": {"caching", "config", "sampling", "select", "types"},
    "trace": {"config", "decode", "numerics", "partition", "select", "types"},
    "generate": {"config", "decode", "trace", "types"},
    "replay": {"settings", "types"},
    "plots": {"replay", "settings", "types"},
    "viewer": {"replay", "types"},
    "stream": {"config", "decode", "generate", "types"},
    "padding": set(),
    "infill": {"codec", "config", "decode", "padding", "types"},
    "text": {"codec", "config", "generate", "infill", "padding", "settings", "stream", "types"},
    "bench": {"caching", "config", "decode", "defaults", "generate", "models", "settings", "types"},
    "reference": {"caching", "config", "partition", "select", "types"},
}
"""Whom each module of decoding may know. No one knows `text`, `bench` or `reference`."""


def imported(path: Path) -> set[str]:
    """Modules of the package, and `convert`, that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "depcap_jax":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
            elif parts[0] == "convert":
                found.add("convert")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "depcap_jax":
                    found.add(parts[1] if len(parts) > 1 else "depcap_jax")
                elif parts[0] == "convert":
                    found.add("convert")
    return found


@pytest.mark.parametrize("module", MAY_IMPORT)
def test_decoding_modules(module):
    assert imported(PACKAGE / f"{module}.py") <= MAY_IMPORT[module]


@pytest.mark.parametrize(
    "path",
    [*PACKAGE.glob("models/*.py"), *PACKAGE.parent.glob("convert/*.py")],
    ids=lambda path: f"{path.parent.name}.{path.stem}",
)
def test_models_and_conversion_know_nothing_of_decoding(path):
    assert not imported(path) & set(MAY_IMPORT)


@pytest.mark.parametrize(
    "path",
    [path for path in PACKAGE.rglob("*.py") if path.parent.name != "cli"],
    ids=lambda path: f"{path.parent.name}.{path.stem}",
)
def test_nobody_knows_the_command(path):
    assert "cli" not in imported(path)
