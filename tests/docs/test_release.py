"""What a release says of itself: one version, dated changes, the versions of Python, where it lives."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest

import depcap_jax
from depcap_jax.cli import main

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_command_tells_the_one_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"depcap {depcap_jax.__version__}\n"
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"] == {"path": "depcap_jax/__init__.py"}


def test_the_changelog_has_this_version_first_and_dates_in_order():
    released = re.findall(r"^## \[?([\d.]+)\]? - (\S+)$", CHANGES, re.MULTILINE)
    assert released[0][0] == depcap_jax.__version__
    days = [datetime.date.fromisoformat(day) for _, day in released]
    assert days == sorted(days, reverse=True)
    assert len({version for version, _ in released}) == len(released) >= 2


def test_the_changelog_has_no_heading_of_another_form():
    headings = re.findall(r"^##+ (.*)$", CHANGES, re.MULTILINE)
    kinds = {"Added", "Changed", "Fixed", "Removed", "Deprecated", "Security", "[Unreleased]"}
    assert all(heading in kinds or re.fullmatch(r"[\d.]+ - [\d-]{10}", heading) for heading in headings)


def test_versions_of_python_are_those_that_are_allowed():
    named = {line.split(" :: ")[-1] for line in PROJECT["project"]["classifiers"] if "Python :: 3." in line}
    assert named == {"3.11", "3.12", "3.13"}
    assert PROJECT["project"]["requires-python"] == f">={min(named)}"


def test_what_ci_checks_is_checked_before_a_commit():
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    before = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    checks = ("ruff check .", "ruff format --check .", "pyright", "lint-imports --no-cache", "pytest -n 2")
    for check in checks:
        assert check in ci
        assert f"entry: {check}" in before
    assert any("mkdocs build --strict" in line for line in ci)
    assert "mkdocs build --strict" in before
    assert not any("mkdocs" in line and "--quiet" in line for line in ci)  # it drops what is to be an error
    assert "bash .ci/run" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
