"""A conversion that is stopped half-way leaves nothing at its target, and the old target as it was."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_checkpoints import REPOSITORY, everything_under

from depcap_jax.checkpoints.loading import load
from depcap_jax.cli.commands.depcap_convert import main

# Runs the command, writing each tensor as it comes, and stops after the tenth until it is killed.
HALF_WAY = """
import sys, time
from pathlib import Path
from depcap_jax.cli.commands import depcap_convert as command
from depcap_jax.checkpoints import conversion, writer

writer._GROUP_BYTES = 1
calls = 0

def stop_half_way(phase, done, total):
    global calls
    calls += 1
    if calls == 11:
        Path(sys.argv[1]).touch()
        while True:  # a signal just before a long sleep would be heeded only after it
            time.sleep(0.1)

convert = conversion.convert
conversion.convert = lambda *places, **settings: convert(*places, **{**settings, "progress": stop_half_way})
sys.exit(command.main(sys.argv[2:]))
"""


@pytest.fixture
def start(golden_dir, tmp_path, heeds_ctrl_c):
    """Starts a conversion to `target` and waits until it is half-way."""
    started: list[subprocess.Popen[str]] = []

    def start(target: Path, *options: str) -> subprocess.Popen[str]:
        marker = tmp_path / f"half-way-{len(started)}"
        arguments = [str(marker), str(golden_dir / "llada"), str(target), *options]
        process = subprocess.Popen(
            [sys.executable, "-c", HALF_WAY, *arguments], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        while not marker.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.02)
        marker.unlink()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def stop(process: subprocess.Popen[str], number: signal.Signals) -> tuple[int, str]:
    process.send_signal(number)
    _, words = process.communicate(timeout=60)
    return process.returncode, words


def test_kill_leaves_nothing_at_the_target_and_the_next_run_clears_up(start, tmp_path, golden_dir):
    target = tmp_path / "out"
    process = start(target)
    beside = [path.name for path in tmp_path.iterdir()]
    assert len(beside) == 1  # half-written parameters, under a name that is not the target's
    assert list((tmp_path / beside[0]).rglob("zarr.json"))
    assert stop(process, signal.SIGKILL)[0] == -signal.SIGKILL
    assert not target.exists()
    with pytest.raises(ValueError, match="no such folder"):
        load(target)
    assert main([str(golden_dir / "llada"), str(target), "--verify"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_kill_leaves_the_old_checkpoint(start, tmp_path, converted_dir):
    target = tmp_path / "out"
    shutil.copytree(converted_dir / "llada", target)
    before = everything_under(target)
    stop(start(target, "--overwrite", "--dtype", "bfloat16"), signal.SIGKILL)
    assert everything_under(target) == before
    assert load(target)[0].dtype.name == "float32"


def test_interrupt_says_so_and_leaves_nothing(start, tmp_path):
    status, words = stop(start(tmp_path / "new" / "out"), signal.SIGINT)
    assert status == 130
    assert words.count("\n") == 1
    assert "interrupted" in words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_termination_leaves_nothing(number, start, tmp_path):
    """As a shell sees it, the exit status is 128 and the signal's number."""
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"this process was started to ignore {number.name}, and so are those that it starts")
    status, words = stop(start(tmp_path / "new" / "out"), number)
    assert status == 128 + number
    assert words == f"depcap-convert: ended by {number.name}; nothing was written\n"
    assert list(tmp_path.iterdir()) == []


def test_termination_that_comes_twice_still_clears_up(start, tmp_path):
    process = start(tmp_path / "new" / "out")
    for _ in range(50):
        process.send_signal(signal.SIGTERM)
    assert stop(process, signal.SIGTERM)[0] == 143
    assert list(tmp_path.iterdir()) == []


def test_running_conversion_is_not_mistaken_for_a_dead_one(start, tmp_path, golden_dir, capsys):
    target = tmp_path / "out"
    process = start(target)
    assert main([str(golden_dir / "llada"), str(target)]) == 0
    beside = sorted(path.name for path in tmp_path.iterdir())
    assert len(beside) == 2  # the other one's half, and ours in place
    assert list((tmp_path / beside[0]).rglob("zarr.json"))
    assert stop(process, signal.SIGINT)[0] == 130
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class InterruptedImport:
    """Ctrl-C at the moment when a module is about to be loaded."""

    def __init__(self, name):
        self.name = name

    def find_spec(self, name, *_):
        if name == self.name:
            raise KeyboardInterrupt


@pytest.mark.parametrize("module", ["dtypes", "errors", "conversion"])
def test_interrupt_while_modules_load_says_so(module, golden_dir, tmp_path, capsys, monkeypatch):
    name = f"depcap_jax.checkpoints.{module}"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [InterruptedImport(name), *sys.meta_path])
    try:
        status = main([str(golden_dir / "llada"), str(tmp_path / "out")])
    except KeyboardInterrupt:  # which would end the whole run
        pytest.fail("Ctrl-C ends in a traceback")
    assert status == 130
    assert capsys.readouterr().err == "depcap-convert: interrupted; nothing was written\n"
    assert list(tmp_path.iterdir()) == []
