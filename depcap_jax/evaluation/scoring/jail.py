"""The inside of the sandbox: run as a script in a process of its own, it locks itself in and runs a program.

It knows nothing of the package. Standard input holds one line of JSON (the program's parts and its limits)
and then a token, which is left unread until the program has ended; the pipe whose number is the only argument
takes back "ready", and then the token or the reason why not. What locks it in, where the system has it:

- a network namespace of its own, with no network in it;
- limits on CPU time, memory, file size and open files, and no further process;
- another user's rights, if it was started as root (whom the limit on processes does not bind);
- Landlock: no writing outside the folder, no TCP, no signals to others;
- an audit hook that refuses all of this once more, from Python, on every system.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import struct
import sys
import types
from collections.abc import Callable

READY = b"ready\n"
"""Written before the program starts: what comes after it is the program's doing."""

_NOBODY = 65534
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_KEEPCAPS, _PR_SET_NO_NEW_PRIVS = 8, 38
_CAPABILITY_VERSION, _CAP_DAC_READ_SEARCH = 0x20080522, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_WRITE_RIGHTS = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
_REFUSED = (
    "socket.",
    "subprocess.",
    "ctypes.",
    "os.fork",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "os.kill",
)
_PATH_EVENTS = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.truncate",
    "os.utime",
)
_MOST_FILES = 1024


def main() -> None:
    """Reads the job, locks the process in and runs the job's parts, one after another, in one module."""
    result = int(sys.argv[1])
    job = json.loads(_read_line(0))
    # Under an unlikely number, so that no stray read of standard input eats the token.
    token = os.dup2(0, 64 + int.from_bytes(os.urandom(4)) % (_MOST_FILES - 64), inheritable=False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    lock_in(os.getcwd(), job["limits"])
    write, read, leave = os.write, os.read, os._exit  # the program may replace these in `os`
    write(result, READY)
    try:
        _run(job["parts"])
    except BaseException as error:  # also what the program raises to get out: SystemExit, KeyboardInterrupt
        write(result, f"{type(error).__name__}: {error}"[:400].encode(errors="replace"))
        leave(1)
    write(result, read(token, 64))
    leave(0)  # without what the program left to be done at exit


def _read_line(handle: int) -> bytes:
    """A line, and nothing behind it: the token stays in the pipe."""
    length = int(os.read(handle, 12))
    line = b""
    while len(line) < length:
        part = os.read(handle, length - len(line))
        if not part:
            raise EOFError("the job ends early")
        line += part
    return line


def _run(parts: list[str]) -> None:
    """Runs the parts; all are compiled before the first of them could tamper with `compile` or the rest."""
    compiled = tuple(
        compile(part, f"<part {number}>", "exec", dont_inherit=True)
        for number, part in enumerate(parts, start=1)
    )
    # Not called `__main__`: what a program does when it is started by hand is not part of its tests.
    module = types.ModuleType("program")
    sys.modules["program"] = sys.modules["__main__"] = module
    sys.argv[:] = ["program"]
    run = exec
    for code in compiled:
        run(code, module.__dict__)


def lock_in(folder: str, limits: dict[str, int]) -> None:
    """Takes from this process whatever a program to be tested does not need."""
    libc = ctypes.CDLL(None, use_errno=True)
    root = os.geteuid() == 0
    libc.unshare(_CLONE_NEWNET if root else _CLONE_NEWUSER | _CLONE_NEWNET)  # not permitted everywhere
    if root:
        _become_nobody(libc, folder)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _landlock(libc, folder)
    for kind, limit in (
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_NOFILE, _MOST_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(kind)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (limit, limit))
    sys.addaudithook(_guard(os.path.realpath(folder)))


def _become_nobody(libc: ctypes.CDLL, folder: str) -> None:
    """Gives up root for good, but for the right to read, where the interpreter's own library needs it."""
    os.chown(folder, _NOBODY, _NOBODY)
    os.setgroups([])
    os.setegid(_NOBODY)
    os.seteuid(_NOBODY)
    readable = os.access(os.__file__, os.R_OK, effective_ids=True)
    os.seteuid(0)
    libc.prctl(_PR_SET_KEEPCAPS, 0 if readable else 1, 0, 0, 0)
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    if not readable:
        header, kept = struct.pack("Ii", _CAPABILITY_VERSION, 0), 1 << _CAP_DAC_READ_SEARCH
        if libc.capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0)):
            raise OSError(ctypes.get_errno(), "cannot give up root's capabilities")


def _landlock(libc: ctypes.CDLL, folder: str) -> None:
    """Forbids writing outside the folder, and where the kernel can, TCP and signals to other processes."""
    version = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return
    rights = _WRITE_RIGHTS | (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)
    network, scope = (3 if version >= 4 else 0), (3 if version >= 6 else 0)
    fields = struct.pack("QQQ", rights, network, scope)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = libc.syscall(_LANDLOCK_CREATE, fields, len(fields), 0)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    beneath = struct.pack("=Qi", rights, handle)
    if (
        rules < 0
        or libc.syscall(_LANDLOCK_ADD, rules, 1, beneath, 0)
        or libc.syscall(_LANDLOCK_RESTRICT, rules, 0)
    ):
        raise OSError(ctypes.get_errno(), "Landlock is there but refused its rules")
    os.close(handle)
    os.close(rules)


def _guard(folder: str) -> Callable[[str, tuple], None]:
    """An audit hook; it cannot be removed, and what it asks of `os` is bound here."""
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    realpath, fsdecode, inside = os.path.realpath, os.fsdecode, folder + os.sep

    def is_outside(path: object) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False  # a file that is open already
        real = realpath(fsdecode(path))
        return not (real + "/").startswith(inside) and real != "/dev/null"

    def hook(event: str, arguments: tuple) -> None:
        if event.startswith(_REFUSED):
            raise PermissionError(f"{event} is not allowed in the sandbox")
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & writing and is_outside(path):
                raise PermissionError(f"the sandbox does not allow writing outside its folder: {path!r}")
        elif event.startswith(_PATH_EVENTS) and any(map(is_outside, arguments)):
            raise PermissionError(f"the sandbox does not allow {event} outside its folder: {arguments!r}")

    return hook


if __name__ == "__main__":
    main()
