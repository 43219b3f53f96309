"""Runs a program that a model wrote and its tests, in two processes that can do nothing else.

`jail/` is what they run: the tests call the program's functions across a socket, and both lock themselves in.
Around them is a guard, the first of these that works here, which one empty program shows:

- `bubblewrap`: a system of their own, read-only but for a small `/tmp`; no home, no network, no others;
- `landlock`: they can read Python and the system's libraries, and write nothing.

What remains: a program sees what its functions are called with, so it may know answers by heart; it is asked
for names that its tests use and do not define, Python's among them if the tests use no others, so that it may
redefine what compares its answers; it may make any number of empty files in its `/tmp`; with `landlock` it
sees which files exist. And all of it is as good as the kernel: code that was written to attack that belongs
into a virtual machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from depcap_jax.decoding.policy import check_integer

GUARDS = ("bubblewrap", "landlock")
UNGUARDED = "none"
"""In place of a guard: limits on time and memory, and otherwise all rights of whoever runs it."""

_JAIL = str(Path(__file__).with_name("jail"))
_READABLE = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.prefix, sys.base_prefix, _JAIL)
# NumPy's linear algebra would start threads, which is refused, and fail.
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", **_THREADS}
_SILENT: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a program may use."""

    cpu_seconds: int = 15
    """Of CPU time: a busy machine makes no program fail."""
    seconds: int = 60
    """By the clock, for those that wait."""
    memory: int = 1 << 30
    """Bytes of address space."""
    disk: int = 1 << 20
    """Bytes in all files of its `/tmp`, which it has with bubblewrap only; their number is not limited."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_integer(field.name, getattr(self, field.name), 1)


class Outcome(NamedTuple):
    """How a program ended."""

    passed: bool
    reason: str
    """Why it did not pass; empty if it did."""


class CodeExecutionError(ValueError):
    """Model-written code was to be run, but nobody allowed it, or no sandbox works here."""


def run_program(program: str, tests: str, limits: Limits | None = None, guard: str | None = None) -> Outcome:
    """Whether a program passes its tests: code that it does not see, calls its functions, and raises nothing.

    What crosses is copied. The guard is one of `GUARDS` or `UNGUARDED`, by default `find_guard()`.

    Raises:
      CodeExecutionError: if the sandbox does not start. Whatever a program does is an outcome.
    """
    limits, guard = limits or Limits(), guard or find_guard()
    job, late = json.dumps([program, tests]).encode(), f"not done after {limits.seconds} s"
    one, other = socket.socketpair()
    try:
        with one, other, subprocess.Popen(**_side("program", one, guard, limits), **_SILENT) as running:
            one.close()
            try:
                side = _side("tests", other, guard, limits)
                done = subprocess.run(**side, input=job, capture_output=True, timeout=limits.seconds)
                said, words = done.stdout, done.stderr.decode(errors="replace").strip()
            finally:
                running.kill()
    except subprocess.TimeoutExpired as error:
        said, words = (error.stdout or b"") + late.encode(), late
    except OSError as error:
        said, words = b"", str(error)
    ready, _, verdict = said.partition(b"\n")
    if ready != b"ready":
        last = words.rpartition("\n")[2]  # of a traceback
        raise CodeExecutionError(f"{guard} does not start: {last}")
    reason = verdict.decode().strip('"\n') or "its tests ran out of CPU time or memory"
    return Outcome(True, "") if verdict == b"passed\n" else Outcome(False, reason)


def _side(name: str, end: socket.socket, guard: str, limits: Limits) -> dict[str, Any]:
    """How a side of the jail is started, with its end of the socket, behind the guard."""
    most = {"CPU": limits.cpu_seconds, "AS": limits.memory, "FSIZE": limits.disk, "NPROC": 1, "NOFILE": 64}
    readable = _READABLE if guard == "landlock" else ()
    settings = json.dumps({"limits": most, "readable": readable, "guarded": guard != UNGUARDED})
    command = [sys.executable, "-IB", "-Xint_max_str_digits=0", _JAIL, name, str(end.fileno()), settings]
    if guard == "bubblewrap":
        binds = [word for path in _READABLE for word in ("--ro-bind-try", path, path)]
        own = ["--size", str(limits.disk), "--tmpfs", "/tmp", *binds, "--dev-bind", os.devnull, os.devnull]
        away = ["--remount-ro", "/", "--unshare-all", "--die-with-parent", "--chdir", "/tmp"]
        command = ["bwrap", *own, *away, *command]
    handles = (end.fileno(),)
    return {"args": command, "pass_fds": handles, "cwd": "/", "env": _ENVIRONMENT, "start_new_session": True}


@cache
def find_guard() -> str:
    """The first guard that works here; CodeExecutionError if none does."""
    said = []
    for guard in GUARDS:
        try:
            run_program("", "", guard=guard)
            return guard
        except CodeExecutionError as error:
            said.append(str(error))
    raise CodeExecutionError(f"no sandbox works here ({'; '.join(said)}): install bubblewrap")
