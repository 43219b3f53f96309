"""What a process of the sandbox gives up, for good, before it runs anything: the kernel holds it to that.

Its CPU time, memory and files are limited; it has no capability, even as root; and a seccomp filter refuses
what starts processes or threads, sends signals, opens sockets, reaches for other processes, or changes files'
modes, owners and times. With Landlock it also writes nothing, and reads Python and the system's libraries.
"""

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Mapping, Sequence

_X86 = """29-31 41 56-59 62 64-71 90-94 101 103 129 132 141-142 144 188-190 197-200 203 220 234-235 240-241
248-251 256 260-261 268 272 279-280 297-298 302-304 308 310-312 314 321-323 424-4294967295"""
_ARM = """5-7 14-16 30 52-55 88 97 116-119 122 129-131 138 140 180-198 217-221 238-241 261 264-265 268 270-272
274 280-282 424-4294967295"""
MACHINES = {"x86_64": (0xC000003E, 72, 16, _X86), "aarch64": (0xC00000B7, 25, 29, _ARM)}
"""By machine: its name for seccomp, its numbers of `fcntl`, of `ioctl`, and of what is refused, from-to."""
_LIBC = ctypes.CDLL(None, use_errno=True)


def lock_in(limits: Mapping[str, int], readable: Sequence[str], guarded: bool) -> None:
    """Locks this process in: with nothing `readable` without Landlock, if not `guarded` by limits alone."""
    for name, limit in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        limit = min(limit, resource.getrlimit(kind)[1] % 2**64)  # -1 is no limit
        resource.setrlimit(kind, (limit, limit))
    if not guarded:
        return
    for option, value in ((1, 9), (4, 0), (38, 1)):  # killed with its parent, no core dumps, no new rights
        _kernel("prctl", option, value, 0, 0, 0)
    if readable:
        _landlock(readable)
    _kernel("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))
    code = b"".join(struct.pack("HBBI", *line) for line in _filter(platform.machine()))
    address = ctypes.create_string_buffer(code)
    _kernel("prctl", 22, 2, struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(address)), 0, 0)


def _kernel(name: str, *arguments: int | bytes | None) -> int:
    result = getattr(_LIBC, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"the kernel refuses {name} {arguments[0]}")
    return result


def _landlock(readable: Sequence[str]) -> None:
    """Forbids to read all files but these, and to write any; kernels before 6.2 cannot, and say so."""
    rules = _kernel("syscall", 444, struct.pack("Q", (1 << 15) - 1), 8, 0)
    for path in filter(os.path.exists, (*readable, os.devnull)):
        allowed = 4 | 8 * os.path.isdir(path) | 2 * (path == os.devnull)  # read, list, write
        _kernel("syscall", 445, rules, 1, struct.pack("=Qi", allowed, os.open(path, os.O_PATH)), 0)
    _kernel("syscall", 446, rules, 0)


def _filter(machine: str) -> list[tuple[int, int, int, int]]:
    """The seccomp filter: an instruction, the lines to skip if so and if not, and its number."""
    if machine not in MACHINES:
        raise OSError(f"the sandbox knows the system calls of {' and '.join(MACHINES)}, not of {machine}")
    name, control, device, refused = MACHINES[machine]
    load, equal, above, from_on, end = 0x20, 0x15, 0x25, 0x35, 0x06
    allow, refuse, unknown, kill = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
    lines = [(load, 0, 0, 4), (equal, 1, 0, name), (end, 0, 0, kill), (load, 0, 0, 0)]
    for span in refused.split():
        first, last = map(int, f"{span}-{span}".split("-")[:2])
        answer = refuse if first < 424 else unknown  # Python does without the new ones
        lines += [(from_on, 0, 2, first), (above, 1, 0, last), (end, 0, 0, answer)]
    # A file's owner gets signals: no F_SETOWN, F_SETOWN_EX, FIOSETOWN and SIOCSPGRP.
    for call, one, other in ((control, 8, 15), (device, 0x8901, 0x8902)):
        lines += [(equal, 0, 5, call), (load, 0, 0, 24), (equal, 1, 0, one), (equal, 0, 1, other)]
        lines += [(end, 0, 0, refuse), (end, 0, 0, allow)]
    return [*lines, (end, 0, 0, allow)]
