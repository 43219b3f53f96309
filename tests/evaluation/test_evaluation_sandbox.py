from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from depcap_jax.evaluation.scoring.sandbox import Limits, run_program

LIMITS = Limits(cpu_seconds=1, seconds=60)
RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(2) == 4"


def test_right_and_wrong():
    assert run_program([RIGHT, TESTS]).passed
    wrong = run_program(["def double(x):\n    return x\n", TESTS])
    assert not wrong.passed
    assert wrong.reason.startswith("AssertionError")


@pytest.mark.parametrize(
    ("trick", "reason"),
    [
        ("import os\nos._exit(0)", "status 0 before its tests"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("def double(x):\n    import os\n    os._exit(0)", "status 0 before its tests"),
        ("print('passed')\nprint('ready')", "NameError"),
        (
            "import os\nfor pipe in range(3, 1024):\n"
            "    try:\n        os.write(pipe, b'passed')\n    except OSError:\n        pass\nos._exit(0)",
            "status 0 before its tests",
        ),
        ("def double(x):\n    return 4\n'''", "SyntaxError"),
        ("import builtins\nbuiltins.exec = lambda *_: None", "NameError"),
        ("import builtins\nbuiltins.compile = lambda *_, **__: 'pass'", "NameError"),
        ("import sys\nsys._getframe(1).f_locals.get('parts', []).clear()", "NameError"),
        ("import atexit, os\natexit.register(os._exit, 0)\nraise ValueError('early')", "ValueError: early"),
    ],
    ids=[
        "exit",
        "SystemExit",
        "exit in the function",
        "print",
        "write",
        "swallow",
        "exec",
        "compile",
        "frame",
        "atexit",
    ],
)
def test_tricks_do_not_pass(trick, reason):
    outcome = run_program([trick, TESTS], LIMITS)
    assert not outcome.passed
    assert reason in outcome.reason


def test_an_endless_loop_ends():
    assert "not done" in run_program(["import time\ntime.sleep(1000)"], Limits(seconds=10)).reason
    outcome = run_program([RIGHT, "while True:\n    pass"], LIMITS)
    assert not outcome.passed
    assert outcome.reason in ("ended by SIGKILL", "out of CPU time", "not done after 60 s")


def test_a_memory_bomb_fails():
    outcome = run_program(["x = bytearray(1 << 31)", "pass"], LIMITS)
    assert outcome.reason.startswith("MemoryError")


@pytest.mark.parametrize(
    "bomb",
    [
        "import os\nwhile True:\n    os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        # Beneath what Python's audit events see: the kernel's limit alone stands in the way.
        "import threading\nthreading.Thread(target=print).start()",
    ],
    ids=["fork", "subprocess", "system", "thread"],
)
def test_a_fork_bomb_fails(bomb):
    outcome = run_program([bomb], LIMITS)
    assert not outcome.passed
    assert outcome.reason.startswith(("PermissionError", "BlockingIOError", "RuntimeError: can't start"))


def test_files_are_written_inside_only(tmp_path: Path):
    with tempfile.TemporaryDirectory() as shared:  # writable for everyone, as /tmp is
        os.chmod(shared, 0o777)
        outside = Path(shared) / "outside.txt"
        for program in (
            f"open({str(outside)!r}, 'w').write('x')",
            f"import os\nos.mkdir({str(outside)!r})",
            # Python's audit event names a folder by its handle only: here the kernel alone stands in the way.
            f"import os\nos.mkdir('outside.txt', dir_fd=os.open({shared!r}, os.O_RDONLY))",
            f"import os\nopen('inside.txt', 'w').close()\nos.rename('inside.txt', {str(outside)!r})",
        ):
            outcome = run_program([program], LIMITS)
            assert "PermissionError" in outcome.reason, program
            assert not outside.exists()
    assert run_program(["import os\nassert os.listdir() == []\nopen('inside.txt', 'w').write('x')"]).passed


def test_a_large_file_fails():
    outcome = run_program(["open('large', 'wb').write(bytes(1 << 22))"], LIMITS)
    assert not outcome.passed
    assert "too large" in outcome.reason


def test_no_network():
    outcome = run_program(["import socket\nsocket.create_connection(('127.0.0.1', 9))"], LIMITS)
    assert outcome.reason.startswith("PermissionError: socket.")


def test_it_sees_nothing_of_us(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_SECRET", "42")
    program = (
        "import os, sys, __main__\n"
        "assert 'A_SECRET' not in os.environ\n"
        "assert not any(name.startswith('depcap') for name in sys.modules)\n"
        "assert not hasattr(__main__, 'lock_in')\n"
    )
    assert run_program([program]).passed


def test_what_runs_only_by_hand_is_not_run():
    by_hand = "if __name__ == '__main__':\n    print(double(int(input())))"
    assert run_program([f"{RIGHT}\n{by_hand}", TESTS]).passed


def test_numpy_works():
    program = "import numpy\ndef double(x):\n    return (numpy.eye(2) @ [x, x]).sum()"
    assert run_program([program, TESTS]).passed


def test_limits_are_checked():
    with pytest.raises(ValueError, match="memory must be a whole number of at least 1, got 0"):
        Limits(memory=0)
