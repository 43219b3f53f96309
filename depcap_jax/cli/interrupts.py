"""Signals where Python's own way fails people: Ctrl-C at two moments, and those that end a process."""

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
def clears_up(prog: str) -> Iterator[None]:
    """While something is half written, SIGTERM and SIGHUP are raised as SystemExit: nothing is left behind.

    The exit status is what a shell reports of the signal, 128 and its number.
    """

    def leave(number: int, _: object) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_IGN)  # a second one must not stop the clearing up
        # Not print: the signal may have come in the middle of one.
        os.write(2, f"{prog}: ended by {signal.Signals(number).name}; nothing was written\n".encode())
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    # What is ignored, as under nohup, or minded by someone else stays so.
    ours = (number for number in (signal.SIGTERM, signal.SIGHUP) if is_main)
    taken = [number for number in ours if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


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
