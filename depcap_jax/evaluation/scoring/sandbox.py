"""Runs model-written code with its tests: in a process of its own, limited, offline, in an empty folder.

The program counts as passed only if a random token comes back that is read and returned after its last
test: neither a clean exit before the tests nor anything that it prints is mistaken for that. `jail.py` is
what happens on the other side and lists what locks the program in. This is a guard against what models write
by accident, and against cheap tricks; code that was written to break out belongs into a virtual machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from depcap_jax.decoding.policy import check_integer
from depcap_jax.evaluation.scoring.jail import READY

_JAIL = Path(__file__).with_name("jail.py")
# NumPy's linear algebra would start threads, which the limit on processes forbids, and fail.
_THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", **_THREADS}


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a program may use."""

    cpu_seconds: int = 15
    """Of CPU time: a busy machine makes no program fail."""
    seconds: int = 60
    """By the clock, for those that wait."""
    memory: int = 1 << 30
    """Bytes of address space."""
    file_size: int = 1 << 20
    """Bytes of any file that it writes."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_integer(field.name, getattr(self, field.name), 1)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    passed: bool
    reason: str
    """Why it did not pass; empty if it did."""


class CodeExecutionError(ValueError):
    """Model-written code was to be run, but nobody allowed it, or the sandbox does not work here."""


def run_program(parts: Sequence[str], limits: Limits | None = None) -> Outcome:
    """Runs a program's parts one after another in one module, such as a function and then its tests.

    Each part is compiled on its own, so an unfinished one cannot swallow the next.

    Raises:
      CodeExecutionError: if the sandbox itself did not start.
    """
    limits = limits or Limits()
    token = secrets.token_hex(16).encode()
    job = json.dumps({"parts": list(parts), "limits": dataclasses.asdict(limits)}).encode()
    reader, writer = os.pipe()
    # The sandbox may give the folder to another user, hence no complaint if it cannot be cleaned up.
    with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as folder:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(_JAIL), str(writer)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writer,),
                start_new_session=True,
                cwd=folder,
                env={**_ENVIRONMENT, "HOME": folder, "TMPDIR": folder},
            )
        finally:
            os.close(writer)
        timed_out = _feed_and_wait(process, b"%12d" % len(job) + job + token, limits.seconds)
        os.set_blocking(reader, False)
        with open(reader, "rb") as results:
            said = results.read(4096) or b""
    if not said.startswith(READY):
        how = f"in {limits.seconds} s" if timed_out else f"(exit status {process.returncode})"
        raise CodeExecutionError(f"the sandbox did not start {how}")
    said = said.removeprefix(READY)
    if timed_out:
        return Outcome(False, f"not done after {limits.seconds} s")
    if process.returncode == 0 and secrets.compare_digest(said, token):
        return Outcome(True, "")
    return Outcome(False, _reason(said, process.returncode))


def _feed_and_wait(process: subprocess.Popen[bytes], job: bytes, seconds: int) -> bool:
    """Hands over the job and waits; True if time was up. Nothing of the process group is left running."""
    try:
        process.communicate(job, timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()


def _reason(said: bytes, status: int) -> str:
    if status < 0:
        name = signal.Signals(-status).name
        return {"SIGXCPU": "out of CPU time", "SIGXFSZ": "a file became too large"}.get(
            name, f"ended by {name}"
        )
    text = said.decode(errors="replace").strip()
    return text if text and status == 1 else f"ended with status {status} before its tests did"
