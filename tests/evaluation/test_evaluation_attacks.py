"""Hostile programs in the sandbox: none gets out, none passes, and each is a result.

Those that only try something share a process; the others have one each, side by side, once.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from depcap_jax.evaluation.scoring.sandbox import Limits, Outcome, run_program

TESTS = "assert double(2) == 4\nassert double(5) == 10"
SMALL = Limits(cpu_seconds=5, seconds=20, memory=1 << 29)

# Tried one after another in one process; each would raise nothing if it worked, and leave nothing behind.
ESCAPES = {
    "read a secret": "open({secret!r})",
    "read a system's file": "open('/etc/passwd')",
    "read another's environment": "open('/proc/{sleeper}/environ')",
    "read its own memory's map": "open('/proc/self/maps')",
    "list a folder": "os.listdir({folder!r})",
    "append": "open({open!r}, 'a')",
    "truncate": "os.truncate({open!r}, 0)",
    "truncate as it reads": "os.open({open!r}, os.O_RDONLY | os.O_TRUNC)",
    "remove": "os.remove({open!r})",
    "rename": "os.rename({open!r}, {folder!r} + '/renamed')",
    "link": "os.link({open!r}, {folder!r} + '/linked')",
    "make a folder": "os.mkdir({folder!r} + '/made')",
    "make a folder by a handle": "os.mkdir('made', dir_fd=os.open({folder!r}, os.O_PATH))",
    "change a mode": "os.chmod({secret!r}, 0o666)",
    "change a mode, newly": "kernel(452, -100, {secret!r}.encode(), 0o666, 0)",
    "change a time": "os.utime({open!r}, (1, 1))",
    "change an attribute": "os.setxattr({open!r}, 'user.x', b'x')",
    "change an owner": "os.chown({open!r}, 1, 1)",
    "write to the system": "os.remove(open('/usr/lib/x', 'w').name)",
    "write to the root": "os.remove(open('/x', 'w').name)",
    "write to /dev/shm": "os.remove(open('/dev/shm/x', 'w').name)",
    "write to Python": "open(os.__file__, 'a')",
    "TCP": "socket.create_connection(('127.0.0.1', 9))",
    "UDP": "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
    "UNIX": "socket.socket(socket.AF_UNIX)",
    "fork": "os.fork() or os._exit(0)",
    "spawn": "os.posix_spawn('/bin/true', ['true'], {{}})",
    "run": "subprocess.run(['/bin/true'])",
    "execute": "os.execv(sys.executable, ['python', '-c', ''])",
    "thread": "threading.Thread(target=print).start()",
    "namespace": "kernel(272, 0x10000000)",
    "io_uring": "kernel(425, 1, bytes(120))",
    "real-time signal": "signal.raise_signal(40)",
    "kill": "os.kill({sleeper}, 9)",
    "kill the parent": "os.kill(os.getppid(), 9)",
    "kill all": "os.kill(-1, 9)",
    "kill by a handle": "signal.pidfd_send_signal(os.pidfd_open({sleeper}), 9)",
    "kill as a file's owner": "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, {sleeper})",
    "kill as a socket's owner": "fcntl.ioctl(socket.socketpair()[0], 0x8901, struct.pack('i', {sleeper}))",
    "limit another": "resource.prlimit({sleeper}, resource.RLIMIT_CPU, (0, 0))",
    "slow another": "os.setpriority(os.PRIO_PROCESS, {sleeper}, 19)",
    "trace another": "kernel(101, 16, {sleeper}, 0, 0)",
    "shared memory": "kernel(29, 0, 1 << 20, 0o1600)",
    "another machine's calls": "kernel(0x40000000 + 41, 2, 1, 0)",
    "large file in memory": "os.write(os.memfd_create('x'), bytes(1 << 21)) > 1 << 20 or kernel(-1)",
}
ATTEMPTS = """
import ctypes, fcntl, os, resource, signal, socket, struct, subprocess, sys, threading

libc = ctypes.CDLL(None, use_errno=True)

def kernel(*call):
    if libc.syscall(*call) < 0:
        raise OSError(ctypes.get_errno(), "no")

def can(what):
    try:
        exec(what, globals())
    except (OSError, RuntimeError):
        return False
    return True
"""

FILES = """
import os
def fill():
    kept = 0
    try:
        for number in range(64):
            kept += os.write(os.open(str(number), os.O_CREAT | os.O_WRONLY), bytes(1 << 18))
    except OSError:
        return kept
def nest():
    try:
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
    except OSError:
        return False
    return True
"""

# Each in a process of its own: with tests that it does not pass, and what is said of it.
SOCKETS = """
import os, stat
def sockets():
    for number in range(1024):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                yield number
        except OSError:
            pass
"""
HOSTILE = {
    "exit": ("import os\nos._exit(0)", "ended early"),
    "SystemExit": ("def double(x):\n    raise SystemExit(0)", "SystemExit: 0"),
    "swallow": ("def double(x):\n    return 4\n'''", "SyntaxError"),
    "equal to all": ("class All(int):\n    __eq__ = lambda *_: True\ndouble = All", "AssertionError"),
    "like all": ("class All:\n    __eq__ = lambda *_: True\ndef double(x): return All()", "AssertionError"),
    "a reason": ("raise Exception('no\\npassed\\n')", r"Exception: no\npassed\n"),
    "all handles": (
        "import os\nfor number in range(1024):\n    try: os.write(number, b'ready\\npassed\\n')\n"
        "    except OSError: pass",
        "JSONDecodeError",
    ),
    "an answer": (
        f"{SOCKETS}\ndef double(x):\n    for number in sockets():\n"
        "        os.write(number, b'[false, \"\\\\npassed\\\\n\"]\\n')",
        r"\npassed\n",
    ),
    "odd answers": (
        f"{SOCKETS}\ndef double(x):\n    for number in sockets():\n"
        '        os.write(number, b\'[true, {"Lent": [{"list": []}], "set": 1}]\\n\' * 9)',
        "ValueError",
    ),
    "frames": (
        "import gc, sys\ndef double(x):\n    frame = sys._getframe()\n    while frame.f_back:\n"
        "        frame = frame.f_back\n"
        "    return any('double(5)' in str(found) for found in [frame.f_locals, *gc.get_objects()])",
        "AssertionError: ",
    ),
    "Python's own": ("import builtins\nbuiltins.eval = builtins.exec = lambda *_: 4", "not callable"),
    "our modules": ("import json\njson.dumps = lambda *_: '[true, 4]'", "not callable"),
    "cycle": ("def double(x):\n    x = []\n    x.append(x)\n    return x", "RecursionError"),
    "huge answer": ("def double(x):\n    return 'x' * (1 << 28)", "MemoryError"),
    "flood": (
        f"{SOCKETS}\nfor number in sockets():\n    while True: os.write(number, bytes(1 << 20))",
        "",
    ),
    "close": ("import os\nos.closerange(0, 1024)", "ended early"),
    "crash": ("import ctypes\nctypes.string_at(0)", "ended early"),
    "no text": ("class E(Exception):\n    def __str__(self): raise E\nraise E", "ended early"),
    "memory": ("x = bytearray(1 << 30)", "MemoryError"),
    "input": ("input()", "EOFError"),
}
ENDLESS = """
import signal
for number in {*range(1, 65)} - {9, 19, 32, 33}:
    signal.signal(number, signal.SIG_IGN)
while True: pass
"""


@pytest.fixture(scope="module")
def outcomes(anyhow: str) -> dict[str, Outcome]:
    """What became of each hostile program, by name."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sleep = pool.submit(run_program, "import time\ntime.sleep(999)", TESTS, Limits(seconds=5), anyhow)
        endless = pool.submit(run_program, ENDLESS, TESTS, Limits(cpu_seconds=1), anyhow)
        results = pool.map(lambda program: run_program(program[0], TESTS, SMALL, anyhow), HOSTILE.values())
        outcomes = dict(zip(HOSTILE, results, strict=True))
        return {**outcomes, "sleep": sleep.result(), "endless": endless.result()}


def test_nothing_escapes(guard):
    """Also as root: the secret belongs to whoever runs this, and to nobody else."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            os.chmod(folder, 0o777)
            secret, free = Path(folder, "secret"), Path(folder, "open")
            for path, mode in ((secret, 0o600), (free, 0o666)):
                path.write_text("content")
                path.chmod(mode)
            before = [
                (path.stat().st_mode, path.stat().st_mtime, path.read_text()) for path in (secret, free)
            ]
            names = {"secret": str(secret), "open": str(free), "folder": folder, "sleeper": sleeper.pid}
            escapes = {name: what.format(**names) for name, what in ESCAPES.items()}
            tests = f"done = [name for name, what in {escapes!r}.items() if can(what)]\nassert not done, done"
            assert run_program(ATTEMPTS, tests, guard=guard) == Outcome(True, "")
            after = [(path.stat().st_mode, path.stat().st_mtime, path.read_text()) for path in (secret, free)]
            assert after == before
            assert sorted(os.listdir(folder)) == ["open", "secret"]
            assert sleeper.poll() is None
        finally:
            sleeper.kill()


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_a_program_does_is_a_result(name, outcomes):
    assert not outcomes[name].passed
    # Where nothing is expected, a slow machine's limits may come before the error.
    assert HOSTILE[name][1] in outcomes[name].reason


def test_time_is_up(outcomes):
    assert outcomes["endless"] == Outcome(False, "ended early, or out of CPU time or memory")
    assert outcomes["sleep"] == Outcome(False, "not done after 5 s")


def test_a_lent_value_runs_nothing_beside_the_tests(anyhow):
    """Tests that copy what they were lent would run what the program says that it is."""
    code = "0] if 0 else [__import__('os').write(1, b'passed\\n'), __import__('os')._exit(0)"
    answer = json.dumps([True, {"Lent": [code]}])
    program = f"{SOCKETS}\ndef lend():\n    for number in sockets(): os.write(number, b{answer + chr(10)!r})"
    outcome = run_program(program, "import copy\ncopy.deepcopy(lend())", SMALL, anyhow)
    assert not outcome.passed
    assert "ValueError: invalid literal for int()" in outcome.reason


def test_a_program_does_not_answer_for_python(anyhow):
    """NumPy, say, would read memory at whatever address the program names."""
    program = "class Thing:\n    value, __array_interface__ = 4, {'data': (64, True), 'shape': (1,)}"
    tests = "thing = Thing()\nassert thing.value == 4\nassert not hasattr(thing, '__array_interface__')"
    assert run_program(program, tests, SMALL, anyhow) == Outcome(True, "")


def test_all_that_it_writes_is_bounded(guard):
    expected = {"bubblewrap": "0 < fill() <= 1 << 20 and nest()", "landlock": "fill() == 0 and not nest()"}
    assert run_program(FILES, f"assert {expected[guard]}", guard=guard) == Outcome(True, "")
