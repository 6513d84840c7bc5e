"""A process that runs slices of cases, as its parent sees it: where it is, whether it is stuck, how it ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from backends.home import Home
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.worker import Slice, Tally, work

LONGEST_CASE_S = 60.0
_LONGEST_START_S = 180.0
"""A process imports much, and prepares its target, before its first case."""
_LONGEST_END_S = 10.0
_UNSTARTED = -1
_PLACES = 3


class EndedError(Exception):
    """The process ended within its slice; the message says how.

    Attributes:
        number: Of the case at which it ended; None if it ended before the first one.
    """

    def __init__(self, how: str, number: int | None) -> None:
        super().__init__(how)
        self.number = number


class Child:
    """A process at work; the file `errors` takes what it prints."""

    def __init__(self, targets: Mapping[str, type[Target]], home: Home, errors: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._errors = errors
        self._at = context.Value("q", _UNSTARTED, lock=False)
        self._process = context.Process(target=work, args=(targets, home, theirs, self._at, errors), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, cases: Slice) -> None:
        self.slice = cases
        self._at.value = self._seen = _UNSTARTED
        self._since_s = time.monotonic()
        self.pipe.send(cases)

    def tally(self) -> Tally:
        """Return what the slice came to, once `pipe` is readable.

        Raises:
            EndedError: The process ended.
        """
        try:
            tally: Tally = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            number = self._at.value
            raise EndedError(self._epitaph(), None if number == _UNSTARTED else number) from None
        return tally

    def end_if_stuck(self) -> None:
        """End the process if its case has taken too long; it tells first where it is."""
        now_s = time.monotonic()
        if self._at.value != self._seen:
            self._seen, self._since_s = self._at.value, now_s
        limit_s = _LONGEST_START_S if self._seen == _UNSTARTED else LONGEST_CASE_S
        if now_s - self._since_s > limit_s and self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGABRT)

    def close(self) -> None:
        self.pipe.close()
        self._process.join(_LONGEST_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _epitaph(self) -> str:
        self._process.join()
        status = self._process.exitcode or 0
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        lines = [line.strip() for line in self._errors.read_text(errors="replace").splitlines() if line.strip()]
        places = [line for line in lines if line.startswith("File ")][:_PLACES] or lines[-1:]
        return f"ended its process ({how}) at {' < '.join(places) or 'an unknown place'}"
