"""The signals that end a program: within these contexts SIGTERM unwinds it as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Raise `TerminatedError` in the main thread when SIGTERM comes."""
    with _handling({signal.SIGTERM: _terminate}):
        yield


@contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Raise `KeyboardInterrupt` also when SIGINT comes, so that a program can stop its server in its own time.

    A program that a shell has started in the background ignores SIGINT unless it asks for it, as this does.
    """
    with _handling({signal.SIGTERM: _terminate, signal.SIGINT: signal.default_int_handler}):
        yield


class StopRequests:
    """Whether SIGTERM or SIGINT came, for a program that stops in its own time.

    Args:
        by: Who requests it, for messages.
    """

    def __init__(self, by: str = "a signal") -> None:
        self.by = by
        self.requested = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: the first one is noted, each later one interrupts."""
        # No event: the signal may come while its lock is held.
        if not self.requested:
            self.requested = True
        elif number == signal.SIGTERM:
            raise TerminatedError
        else:
            raise KeyboardInterrupt


@contextmanager
def stop_requests() -> Iterator[StopRequests]:
    """Note the first SIGTERM or SIGINT; raise `KeyboardInterrupt` in the main thread for the second one."""
    stop = StopRequests()
    with _handling({signal.SIGTERM: stop.note, signal.SIGINT: stop.note}):
        yield stop


@contextmanager
def _handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError
