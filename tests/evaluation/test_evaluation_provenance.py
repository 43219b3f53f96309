"""The resume key changes with the code that can change an answer or its score, and with nothing else."""

from __future__ import annotations

import ast
import itertools
import os
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

import depcap_jax
from depcap_jax.evaluation.provenance import DECISIVE, module_fingerprint, source_fingerprint

PACKAGE = Path(depcap_jax.__file__).parent
Edit = Callable[[Path], None]
number = itertools.count()


def key_after(tmp_path: Path, edit: Edit = lambda _: None) -> str:
    """The resume key of a copy of the package that was edited."""
    copy = tmp_path / str(next(number))
    shutil.copytree(PACKAGE, copy, ignore=without_data)
    edit(copy)
    return source_fingerprint(copy)


def without_data(folder: str | os.PathLike[str], names: list[str]) -> list[str]:
    """What of a folder is not code."""
    code = [name for name in names if name.endswith(".py") or (Path(folder) / name).is_dir()]
    return [name for name in names if name not in code or name == "__pycache__"]


def comment_everywhere(package: Path) -> None:
    for path in package.rglob("*.py"):
        path.write_text(f"# Another comment.\n{path.read_text()}\n# And one more.\n")


def other_docstrings(package: Path) -> None:
    """Writes another text wherever a statement is a mere text."""
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value = ast.Constant("Another text.")
        path.write_text(ast.unparse(tree))


def append_code(*names: str) -> Edit:
    def edit(package: Path) -> None:
        for name in names:
            path = package / name
            path.write_text(f"{path.read_text()}\n_ANOTHER = 1\n")

    return edit


def change_a_constant(name: str) -> Edit:
    """Changes the first number or text of the code that is not a docstring."""

    def edit(package: Path) -> None:
        tree = ast.parse((package / name).read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
        constant = next(node for node in constants if id(node) not in texts)
        constant.value = f"{constant.value}!"
        (package / name).write_text(ast.unparse(tree))

    return edit


def test_a_copy_has_the_key_of_the_package(tmp_path):
    assert key_after(tmp_path) == source_fingerprint()
    assert all((PACKAGE / part).exists() for part in DECISIVE)


@pytest.mark.parametrize(
    "edit",
    [
        comment_everywhere,
        other_docstrings,
        append_code("inspect/plots.py", "inspect/viewer.py"),
        append_code("cli/reports.py", "cli/commands/depcap_demo.py"),
        append_code("evaluation/figures.py", "evaluation/summary.py", "checkpoints/loading.py"),
    ],
    ids=["comments", "docstrings", "inspect", "cli", "reports"],
)
def test_what_changes_no_answer_keeps_the_key(edit, tmp_path):
    assert key_after(tmp_path, edit) == source_fingerprint()


@pytest.mark.parametrize(
    "name",
    [
        "decoding/select.py",
        "models/layers.py",
        "text/codec.py",
        "evaluation/scoring/answers.py",
        "evaluation/scoring/jail/locks.py",
        "tiny/checker.py",
        "tiny/words.py",
    ],
)
def test_what_may_change_an_answer_or_a_score_changes_the_key(name, tmp_path):
    assert key_after(tmp_path, change_a_constant(name)) != source_fingerprint()


def test_a_new_module_of_a_room_that_decides_changes_the_key(tmp_path):
    def add(package: Path) -> None:
        (package / "decoding" / "another.py").write_text("")

    assert key_after(tmp_path, add) != source_fingerprint()


def test_a_module_without_a_file_has_another_key_each_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "notebook_cells", types.ModuleType("notebook_cells"))
    assert module_fingerprint("notebook_cells") != module_fingerprint("notebook_cells")
    assert module_fingerprint(__name__) == module_fingerprint(__name__) != module_fingerprint("ast")
