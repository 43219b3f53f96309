"""The sandbox: what a right program may do, which guard is taken, and what its filter refuses."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy
import pytest

from depcap_jax.evaluation.scoring import sandbox
from depcap_jax.evaluation.scoring.benchmark_scores import allow_code_execution, require_code_execution
from depcap_jax.evaluation.scoring.sandbox import (
    GUARDS,
    UNGUARDED,
    CodeExecutionError,
    Limits,
    Outcome,
    find_guard,
    run_program,
)

RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(2) == 4\nassert double(5) == 10"

CROSSING = """
import collections, dataclasses

class Node:
    def __init__(self, value): self.value, self.left = value, None

@dataclasses.dataclass
class Pair:
    x: "int"

LIMIT = 3
def depth(node): return 0 if node is None else 1 + depth(node.left)
def count(values): return collections.Counter(values)
def below(n): return (i for i in range(n))
def add(pairs): return sum(pair.x for pair in pairs)
def kinds(): return [None, True, 1, 0.5, float("inf"), 2j, "\\ud800", b"a", (1,), {2}, {(3,): frozenset()}]
def is_a(value, kind): return isinstance(value, kind)
def adder(n): return lambda x, *, more=0: x + n + more
def power(n): return 10**n
if __name__ == "__main__":
    print(input())
"""
CROSSING_TESTS = """
root = Node(1)
root.left = Node(2)
root.left.left = Node(3)
assert depth(root) == 3 and root.left.value == 2
assert count("aab") == {"a": 2, "b": 1} and list(below(LIMIT)) == [0, 1, 2]
assert add([Pair(1), Pair(2)]) == 3
assert kinds() == [None, True, 1, 0.5, float("inf"), 2j, "\\ud800", b"a", (1,), {2}, {(3,): frozenset()}]
assert is_a(3, int) and not is_a(3, str) and adder(3)(4, more=5) == 12 and power(9999) == 10**9999
def check(candidate):
    assert [candidate(i) for i in range(3)] == [1, 10, 100], "a function's own names"
check(power)
"""
NUMPY = """
import numpy
def sums(n): return (numpy.eye(n) @ numpy.arange(n)).sum(), numpy.arange(n).sum(), numpy.bool_(n)
"""


def test_right_and_wrong(guard):
    assert run_program(RIGHT, TESTS, guard=guard) == Outcome(True, "")
    assert run_program("def double(x):\n    return 4", TESTS, guard=guard) == Outcome(
        False, "AssertionError: "
    )


def test_what_crosses(anyhow):
    assert run_program(CROSSING, CROSSING_TESTS, guard=anyhow) == Outcome(True, "")
    assert run_program("def sum(a, b):\n    return 6", "assert sum(10, 15) == 6", guard=anyhow).passed


def test_numpys_numbers_cross(guard):
    if not numpy.__file__.startswith((sys.prefix, sys.base_prefix)):
        pytest.skip(f"needs NumPy in {sys.prefix}, which is all that the sandbox sees of Python")
    assert run_program(NUMPY, "assert sums(3) == (3.0, 3, True)", guard=guard) == Outcome(True, "")


def test_tests_are_not_fooled_by_names(anyhow):
    program = "double = abs = all = len = lambda *_: True\nassert 'check' not in globals()"
    assert not run_program(
        program, "assert all([abs(double(2) - 4) < 1, len([1]) == 1])", guard=anyhow
    ).passed


def test_another_user(guard):
    """Whoever is root here runs it once more as somebody else."""
    program = (
        f"from {sandbox.__name__} import *\nprint(run_program('x = 1', 'assert x == 1', guard={guard!r}))"
    )
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    try:
        command = [sys.executable, "-c", program]
        said = subprocess.run(
            command, user=65534, group=65534, cwd="/", capture_output=True, text=True, check=False
        )
    except PermissionError:
        pytest.skip(f"needs a Python that others may use; {sys.executable} is root's")
    assert said.stdout == "Outcome(passed=True, reason='')\n", said.stderr


@pytest.fixture
def nothing_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with a bubblewrap that fails, as where namespaces are forbidden, and with no other guard."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no namespaces here' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setitem(sandbox._ENVIRONMENT, "PATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "GUARDS", ("bubblewrap",))
    find_guard.cache_clear()
    yield
    find_guard.cache_clear()
    allow_code_execution(False)


def test_a_guard_is_found_by_trying(nothing_works, monkeypatch):
    try:
        run_program("", "", guard="landlock")
    except CodeExecutionError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(sandbox, "GUARDS", GUARDS)
    assert find_guard() == "landlock"


def test_without_a_guard_code_runs_only_if_unsafe_is_allowed(nothing_works):
    allow_code_execution()
    with pytest.raises(
        CodeExecutionError, match=r"no sandbox works here \(.*bwrap: no namespaces here\)"
    ) as error:
        require_code_execution("mbpp")
    assert "install bubblewrap" in str(error.value)
    assert "--unsafe-code-execution" in str(error.value)
    with pytest.raises(CodeExecutionError, match="no sandbox works here"):
        run_program(RIGHT, TESTS)
    allow_code_execution(unsafe=True)
    assert require_code_execution("mbpp") == UNGUARDED
    assert run_program(RIGHT, TESTS, guard=UNGUARDED).passed


def test_limits_are_checked():
    with pytest.raises(ValueError, match=r"memory must be .* of at least 1, got 0"):
        Limits(memory=0)


REFUSED = """
clone fork vfork execve execveat clone3 kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal
socket ptrace process_vm_readv process_vm_writev kcmp prlimit64 setpriority ioprio_set sched_setparam
sched_setscheduler sched_setattr sched_setaffinity migrate_pages move_pages chmod fchmod fchmodat chown fchown
lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr fsetxattr removexattr lremovexattr
fremovexattr shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
mq_unlink add_key request_key keyctl unshare setns bpf perf_event_open userfaultfd name_to_handle_at
open_by_handle_at io_uring_setup
"""
NEEDED = """
read write openat close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask ioctl fcntl dup
getpid getrandom futex exit_group getdents64 clock_gettime socketpair sendmsg recvfrom memfd_create
mkdirat renameat unlinkat ftruncate getcwd chdir sched_getaffinity getpriority
"""


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_the_numbers_of_system_calls_are_the_kernels(machine, header):
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip(f"needs the kernel's {path}")
    numbers = {
        name: int(n) for name, n in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
    }
    _, control, device, refused = locks().MACHINES[machine]
    assert (control, device) == (numbers["fcntl"], numbers["ioctl"])
    spans = [[*map(int, f"{span}-{span}".split("-")[:2])] for span in refused.split()]

    known = [name for name in REFUSED.split() if name in numbers]  # a machine does not have all of them
    assert len(known) > 50

    def is_refused(name: str) -> bool:
        return any(low <= numbers[name] <= high for low, high in spans)

    assert [name for name in known if not is_refused(name)] == []
    assert [name for name in NEEDED.split() if is_refused(name)] == []


def locks() -> ModuleType:
    """The module of the jail that locks it."""
    spec = importlib.util.spec_from_file_location("locks", Path(sandbox._JAIL, "locks.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
