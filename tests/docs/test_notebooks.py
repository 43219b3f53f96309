"""Every notebook runs, quickly, and what is committed of its output still holds.

`python tests/docs/test_notebooks.py [NAME ...]` runs notebooks and writes their outputs into them.
"""

from __future__ import annotations

import re
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra notebook")
nbclient = pytest.importorskip("nbclient", reason="needs the extra notebook")
pytest.importorskip("ipykernel", reason="needs the extra notebook")
pytest.importorskip("matplotlib", reason="needs the extra notebook")

pytestmark = pytest.mark.notebook

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["frontier", "inside_depcap", "quickstart", "real_models", "why_additive", "write_your_own_policy"]
MOST_BYTES = 700_000
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")

notebooks = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def executed(path: Path) -> tuple[Any, float]:
    """The notebook run from its first cell to its last, and the seconds that it took.

    On a busy machine those are the CPU seconds of its kernel: an idle one needs no more than that.
    """
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    settings = {"timeout": 1800, "kernel_name": "python3", "resources": {"metadata": {"path": str(ROOT)}}}
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # what could fetch gigabytes takes an embedded model
        nbclient.NotebookClient(notebook, **settings).execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return notebook, min(busy, time.perf_counter() - begin)


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs if output.output_type == "stream")


def claims(notebook: Any) -> list[str]:
    return [printed(cell) for cell in notebook.cells if "claim" in cell.metadata.get("tags", [])]


def agree(committed: str, now: str) -> bool:
    """The same words, and numbers that differ by no more than another processor's rounding may bring."""
    if NUMBER.sub("#", committed).split() != NUMBER.sub("#", now).split():
        return False
    pair = [np.array(NUMBER.findall(text), float) for text in (committed, now)]
    return bool(np.allclose(*pair, rtol=0.05, atol=0.05))


def test_all_are_here():
    assert [path.stem for path in PATHS] == NAMES


@notebooks
def test_it_runs_and_what_it_claims_is_not_stale(path):
    """One test, so that one worker runs the notebook once."""
    notebook, _ = executed(path)
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
    committed, now = claims(read(path)), claims(notebook)
    assert committed
    for old, new in zip(committed, now, strict=True):
        assert agree(old, new), f"committed:\n{old}\nnow:\n{new}"


def test_agreement_can_fail():
    assert agree("depcap  62% 15.4\n", "depcap 61% 15.5")
    assert not agree("depcap 62% 15.4", "depcap 42% 15.4")
    assert not agree("depcap 62% 15.4", "vanilla 62% 15.4")
    assert not agree("depcap 62%", "depcap 62% 15.4")


@notebooks
def test_it_is_committed_with_its_outputs(path):
    """Run in order, from top to bottom, without error or warning, and small enough to read on the web."""
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert not [output for output in outputs if output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs) or path.stem.startswith("write")
    assert path.stat().st_size < MOST_BYTES
    assert not re.search(r"/(root|opt|home|tmp|usr)/", path.read_text(encoding="utf-8"))


@notebooks
def test_colab_habits(path):
    first, install, *_ = read(path).cells
    assert f"/blob/main/notebooks/{path.name}" in first.source
    assert "colab-badge.svg" in first.source
    assert install.cell_type == "code"
    assert 'if "google.colab" in sys.modules:\n    %pip install' in install.source
    assert install.outputs == []


def _write(path: Path) -> None:
    notebook, seconds = executed(path)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day, which differ every time
        if cell.cell_type == "code":  # what libraries complain of is the machine, not the notebook
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"{path.name}: {seconds:.0f} s, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    for chosen in PATHS:
        if chosen.stem in sys.argv[1:] or not sys.argv[1:]:
            _write(chosen)
