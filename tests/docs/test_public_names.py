"""Where users read, nothing private is used: notebooks, README and docs import from `depcap_jax` alone."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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


def public_names(module: ModuleType) -> list[str]:
    """What a module says that it has; or what it or its folder defines, without an underscore before it."""
    if hasattr(module, "__all__"):
        return module.__all__
    names = (name for name, value in vars(module).items() if not isinstance(value, ModuleType))
    home = f"{module.__name__}."
    own = (name for name in names if f"{getattr(vars(module)[name], '__module__', home)}.".startswith(home))
    return [name for name in own if not name.startswith("_")]


def private_names(program: str) -> list[str]:
    """What a program uses of the package that is not one of its public names."""
    modules, wrong = {"dc": depcap_jax, "depcap_jax": depcap_jax}, []
    nodes = list(ast.walk(ast.parse(program)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "depcap_jax":
            if node.module != "depcap_jax":
                wrong.append(node.module)
            wrong += [alias.name for alias in node.names if alias.name not in depcap_jax.__all__]
            modules |= {a.asname or a.name: getattr(depcap_jax, a.name, None) for a in node.names}
        elif isinstance(node, ast.Import):
            wrong += [a.name for a in node.names if a.name.startswith("depcap_jax.")]
            modules |= {a.asname: depcap_jax for a in node.names if a.asname and a.name == "depcap_jax"}

    def module_of(node: ast.AST) -> ModuleType | None:
        """The module of the package that an expression names."""
        value = None
        if isinstance(node, ast.Name):
            value = modules.get(node.id)
        elif isinstance(node, ast.Attribute) and (outer := module_of(node.value)):
            value = getattr(outer, node.attr, None)
        return value if isinstance(value, ModuleType) else None

    for node in nodes:
        if isinstance(node, ast.Attribute):
            module, is_private = module_of(node.value), re.match("_(?!_)", node.attr)
            if is_private or (module and node.attr not in public_names(module)):
                wrong.append(node.attr)
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_uses_public_names_only(path):
    assert private_names("\n".join(programs(path))) == []


def test_private_names_are_seen():
    assert private_names("from depcap_jax.decoding.select import TopOne") == ["depcap_jax.decoding.select"]
    assert private_names("import depcap_jax.cli") == ["depcap_jax.cli"]
    assert private_names("import depcap_jax as dc\ndc.nothing") == ["nothing"]
    assert private_names("from depcap_jax import nothing") == ["nothing"]
    assert private_names("f._cache_size()") == ["_cache_size"]
    assert private_names("import depcap_jax as dc\ndc.generate\ndc.__all__") == ["__all__"]
    assert private_names("import depcap_jax as dc\ndc.plots._draw_arcs") == ["_draw_arcs"]
    assert private_names("import depcap_jax as dc\ndc.plots.Nothing\ndc.plots.progress") == ["Nothing"]
    assert private_names("import depcap_jax as d\nd.nothing") == ["nothing"]
    assert private_names("from depcap_jax import tiny\ntiny.checker._math") == ["_math", "checker"]
    assert private_names("load(name)[0].layers[0]._q") == ["_q"]
    assert private_names("f.__doc__") == []


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
