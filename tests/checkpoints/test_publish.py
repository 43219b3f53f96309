"""Folders that appear whole or not at all."""

from __future__ import annotations

import pytest

from depcap_jax.checkpoints import publish
from depcap_jax.checkpoints.errors import CheckpointError
from depcap_jax.checkpoints.publish import published_folder


def test_folder_appears_at_the_end(tmp_path):
    with published_folder(tmp_path / "a" / "b", replace=False) as work:
        (work / "file").write_text("x")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b" / "file").read_text() == "x"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def publish_and(act, target):
    with published_folder(target, replace=False) as work:
        (work / "file").write_text("x")
        act()


def test_error_leaves_nothing_not_even_parents(tmp_path):
    with pytest.raises(ZeroDivisionError):
        publish_and(lambda: 1 / 0, tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_came_meanwhile_is_left_alone(tmp_path):
    def come() -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "other").write_text("theirs")

    with pytest.raises(CheckpointError, match="meanwhile"):
        publish_and(come, tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "other"]


@pytest.mark.parametrize("exchange", [True, False], ids=["in one step", "in two"])
def test_replacing_keeps_the_old_until_the_end(exchange, tmp_path, monkeypatch):
    if not exchange:  # as on a system without renameat2
        monkeypatch.setattr(publish.ctypes, "CDLL", lambda *_, **__: object())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").write_text("old")
    with published_folder(tmp_path / "out", replace=True) as work:
        (work / "file").write_text("new")
        assert (tmp_path / "out" / "file").read_text() == "old"
    assert (tmp_path / "out" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
