"""The house: rooms that know only what they may, light to enter, and nothing in it that nobody needs."""

from __future__ import annotations

import ast
import collections
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from small_checkpoints import REPOSITORY

PACKAGE = REPOSITORY / "depcap_jax"
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = {"checkpoints", "cli", "decoding", "evaluation", "inspect", "models", "text", "tiny"}

# Where an import's name is not that of its distribution.
_DISTRIBUTIONS = {"orbax": "orbax-checkpoint"}


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_the_rooms_are_those_of_the_plan():
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == ROOMS
    assert [path.name for path in PACKAGE.glob("*.py")] == ["__init__.py"]
    assert {path.name for path in (REPOSITORY / "tests").iterdir()} >= ROOMS, "a folder of tests per room"


def test_decoding_imports_nothing_but_jax_numpy_and_chex():
    known = {"jax", "numpy", "chex", "depcap_jax", *sys.stdlib_module_names}
    strangers = {path.name: imported(path) - known for path in (PACKAGE / "decoding").rglob("*.py")}
    assert {"loop.py", "spans.py", "windows.py"} <= set(strangers), "its folders too"
    assert {name: names for name, names in strangers.items() if names} == {}


FORBIDDEN = [
    ("decoding.compute.numerics", "depcap_jax.models.config", "Rooms import from lower rooms only"),
    ("models.layers", "depcap_jax.decoding.compute.numerics", "Rooms import from lower rooms only"),
    ("text.codec", "depcap_jax.checkpoints.loading", "Rooms import from lower rooms only"),
    ("tiny.checker", "depcap_jax.cli.options", "Rooms import from lower rooms only"),
    ("decoding.select", "flax", "Decoding knows nothing but"),
    ("decoding.field.windows", "optax", "Decoding knows nothing but"),
    ("decoding.compute.spans", "huggingface_hub", "Decoding knows nothing but"),
    ("decoding.compute.prediction", "scipy", "Decoding knows nothing but"),
    ("evaluation.tasks", "argparse", "Only the command parses arguments"),
]


@pytest.fixture(scope="module")
def broken_contracts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of a copy of the package with all forbidden imports, in one line."""
    folder = tmp_path_factory.mktemp("broken")
    shutil.copytree(PACKAGE, folder / "depcap_jax", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    for module, name, _ in FORBIDDEN:
        with (folder / "depcap_jax" / f"{module.replace('.', '/')}.py").open("a", encoding="utf-8") as file:
            file.write(f"\nimport {name}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stdout
    return " ".join(done.stdout.split("Broken contracts")[1].split())


@pytest.mark.parametrize(("module", "name", "contract"), FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(module, name, contract, broken_contracts):
    parts = re.split(r"(?: ?-{5,})+", broken_contracts)  # a title is underlined, and ends the part before
    said = next(after for part, after in itertools.pairwise(parts) if contract in part)
    assert re.search(rf"depcap_jax\.{re.escape(module)} -> {re.escape(name)}\b", said)


def test_entering_imports_nothing_heavy():
    """Loading, text, plots and evaluation come when they are first used."""
    program = """
import sys, depcap_jax as dc
heavy = {"orbax", "tensorstore", "tqdm", "transformers", "tokenizers", "safetensors", "matplotlib"}
print(sorted(heavy & set(sys.modules)))
assert callable(dc.depcap) and dc.TextGenerator and dc.plots and dc.viewer
print(sorted({"tqdm", "matplotlib"} & set(sys.modules)))
dc.load
print(sorted({"orbax", "tensorstore"} & set(sys.modules)))
assert set(dc.__all__) <= set(dir(dc))
for name in dc.__all__:
    getattr(dc, name)
try:
    dc.nothing
except AttributeError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert run.stdout.splitlines() == [
        "[]",
        "['tqdm']",
        "['tensorstore']",
        "module 'depcap_jax' has no attribute 'nothing'",
    ]


def test_every_dependency_is_imported_by_the_package():
    declared = {re.split(r"[\[<>=]", line)[0] for line in PROJECT["project"]["dependencies"]}
    used = set().union(*map(imported, MODULES))
    assert declared <= {_DISTRIBUTIONS.get(name, name) for name in used}
    assert {"jax", "flax", "transformers", "orbax-checkpoint", "numpy", "chex"} <= declared


def test_files_are_small_and_have_names_of_their_own():
    beside = {top: sorted((REPOSITORY / top).rglob("*.py")) for top in ("benchmarks", "training", "convert")}
    ours = [*MODULES, *itertools.chain(*beside.values())]
    for path in (*ours, *(REPOSITORY / "tests").rglob("*.py")):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 330, path
    names = collections.Counter(path.name for path in ours if not path.name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_reader_sees_few_doors_on_a_floor():
    """A door is a module or a folder of them."""
    doors = {path if path.name != "__init__.py" else path.parent for path in MODULES}
    floors = collections.Counter(path.parent for path in doors if not path.name.startswith("__"))
    assert max(floors.values()) <= 14, floors.most_common(3)


def test_the_wheel_holds_the_package_alone():
    built = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built == {"packages": ["depcap_jax"]}
    assert set(PROJECT["project"]["scripts"]) == {"depcap", "depcap-convert"}
    files = {path.name for path in (REPOSITORY / "convert").iterdir() if path.name != "__pycache__"}
    assert files == {"__main__.py"}
