"""Ctrl-C at the two moments when Python's own way, an exception, fails people."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

INTERRUPTED = 130


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """While modules load, Ctrl-C ends the process where it is: nothing has begun that could be half done.

    An exception would be raised inside whatever runs, and that may be native code being initialised, which
    aborts with a page of its own.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield  # someone else minds it
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def comes_again() -> Iterator[None]:
    """Ctrl-C that came inside a callback, where Python cannot raise it and would lose it, comes again."""
    before, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _end(*_: object) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(INTERRUPTED)


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    if unraisable.exc_type is KeyboardInterrupt:
        threading.Timer(0.01, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(unraisable)
