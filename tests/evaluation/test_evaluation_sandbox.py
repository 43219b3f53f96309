"""The sandbox: every program runs in a process of its own, all of them side by side, once."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from depcap_jax.evaluation.scoring.sandbox import Limits, Outcome, run_program

LIMITS = Limits(cpu_seconds=1, seconds=60)
RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(2) == 4"

TRICKS = {
    "exit": ("import os\nos._exit(0)", "status 0 before its tests"),
    "SystemExit": ("import sys\nsys.exit(0)", "SystemExit"),
    "exit in the function": ("def double(x):\n    import os\n    os._exit(0)", "status 0 before its tests"),
    "print": ("print('passed')\nprint('ready')", "NameError"),
    "write": (
        "import os\nfor pipe in range(3, 1024):\n"
        "    try:\n        os.write(pipe, b'passed')\n    except OSError:\n        pass\nos._exit(0)",
        "status 0 before its tests",
    ),
    "swallow": ("def double(x):\n    return 4\n'''", "SyntaxError"),
    "exec": ("import builtins\nbuiltins.exec = lambda *_: None", "NameError"),
    "compile": ("import builtins\nbuiltins.compile = lambda *_, **__: 'pass'", "NameError"),
    "frame": ("import sys\nsys._getframe(1).f_locals.get('parts', []).clear()", "NameError"),
    "atexit": (
        "import atexit, os\natexit.register(os._exit, 0)\nraise ValueError('early')",
        "ValueError: early",
    ),
}

BOMBS = {
    "fork": "import os\nwhile True:\n    os.fork()",
    "subprocess": "import subprocess\nsubprocess.run(['true'])",
    "system": "import os\nos.system('true')",
    # Beneath what Python's audit events see: the kernel's limit alone stands in the way.
    "thread": "import threading\nthreading.Thread(target=print).start()",
}

WRITERS = {
    "open": "open({outside!r}, 'w').write('x')",
    "mkdir": "import os\nos.mkdir({outside!r})",
    # Python's audit event names a folder by its handle only: here the kernel alone stands in the way.
    "handle": "import os\nos.mkdir('handle', dir_fd=os.open({shared!r}, os.O_RDONLY))",
    "rename": "import os\nopen('inside.txt', 'w').close()\nos.rename('inside.txt', {outside!r})",
}

LOOKS_AROUND = """
import os, sys, __main__
assert 'A_SECRET' not in os.environ
assert not any(name.startswith('depcap') for name in sys.modules)
assert not hasattr(__main__, 'lock_in')
"""

BY_HAND = "if __name__ == '__main__':\n    print(double(int(input())))"


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder that everyone may reach and write to, as /tmp is; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


@pytest.fixture(scope="module")
def outcomes(shared: Path) -> dict[str, Outcome]:
    """What became of each program, by name."""
    programs: dict[str, tuple[list[str], Limits]] = {
        "right": ([RIGHT, TESTS], Limits()),
        "wrong": (["def double(x):\n    return x\n", TESTS], Limits()),
        "sleep": (["import time\ntime.sleep(1000)"], Limits(seconds=5)),
        "loop": ([RIGHT, "while True:\n    pass"], LIMITS),
        "memory": (["x = bytearray(1 << 31)", "pass"], LIMITS),
        "inside": (["import os\nassert os.listdir() == []\nopen('inside.txt', 'w').write('x')"], Limits()),
        "large file": (["open('large', 'wb').write(bytes(1 << 22))"], LIMITS),
        "network": (["import socket\nsocket.create_connection(('127.0.0.1', 9))"], LIMITS),
        "secret": ([LOOKS_AROUND], Limits()),
        "by hand": ([f"{RIGHT}\n{BY_HAND}", TESTS], Limits()),
        "numpy": (
            ["import numpy\ndef double(x):\n    return (numpy.eye(2) @ [x, x]).sum()", TESTS],
            Limits(),
        ),
    }
    programs |= {f"trick {name}": ([trick, TESTS], LIMITS) for name, (trick, _) in TRICKS.items()}
    programs |= {f"bomb {name}": ([bomb], LIMITS) for name, bomb in BOMBS.items()}
    programs |= {
        f"writer {name}": ([program.format(shared=str(shared), outside=str(shared / name))], LIMITS)
        for name, program in WRITERS.items()
    }
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(os.cpu_count()) as pool:
        patch.setenv("A_SECRET", "42")
        results = pool.map(lambda program: run_program(*program), programs.values())
        return dict(zip(programs, results, strict=True))


def test_right_and_wrong(outcomes):
    assert outcomes["right"].passed
    assert not outcomes["wrong"].passed
    assert outcomes["wrong"].reason.startswith("AssertionError")


@pytest.mark.parametrize("name", TRICKS)
def test_tricks_do_not_pass(name, outcomes):
    assert not outcomes[f"trick {name}"].passed
    assert TRICKS[name][1] in outcomes[f"trick {name}"].reason


def test_an_endless_loop_ends(outcomes):
    assert outcomes["sleep"].reason == "not done after 5 s"
    assert not outcomes["loop"].passed
    assert outcomes["loop"].reason in ("ended by SIGKILL", "out of CPU time", "not done after 60 s")


def test_a_memory_bomb_fails(outcomes):
    assert outcomes["memory"].reason.startswith("MemoryError")


@pytest.mark.parametrize("name", BOMBS)
def test_a_fork_bomb_fails(name, outcomes):
    outcome = outcomes[f"bomb {name}"]
    assert not outcome.passed
    assert outcome.reason.startswith(("PermissionError", "BlockingIOError", "RuntimeError: can't start"))


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_written_inside_only(name, outcomes, shared):
    assert "PermissionError" in outcomes[f"writer {name}"].reason
    assert not (shared / name).exists()
    assert outcomes["inside"].passed


def test_a_large_file_fails(outcomes):
    assert not outcomes["large file"].passed
    assert "too large" in outcomes["large file"].reason


def test_no_network(outcomes):
    assert outcomes["network"].reason.startswith("PermissionError: socket.")


def test_it_sees_nothing_of_us(outcomes):
    assert outcomes["secret"].passed


def test_what_runs_only_by_hand_is_not_run(outcomes):
    assert outcomes["by hand"].passed


def test_numpy_works(outcomes):
    assert outcomes["numpy"].passed


def test_limits_are_checked():
    with pytest.raises(ValueError, match=r"memory must be .* of at least 1, got 0"):
        Limits(memory=0)
