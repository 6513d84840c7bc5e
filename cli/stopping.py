"""The signals that end a command: SIGTERM unwinds it as Ctrl-C does, so that it can say how to go on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from builder.termination import TerminatedError
from cli.exit_codes import INTERRUPTED, TERMINATED


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Raise `TerminatedError` in the main thread when SIGTERM comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def exit_code_of(stop: KeyboardInterrupt) -> int:
    return TERMINATED if isinstance(stop, TerminatedError) else INTERRUPTED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise TerminatedError
