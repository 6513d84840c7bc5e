"""Seats: each of the processes on one home writes overlay logs of its own."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import count
from pathlib import Path

from backends.errors import ConflictError
from backends.file_lock import locked


class Seat:
    """The lowest number that no other process has; its lock ends with the process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = ExitStack()
        self.number = next(number for number in count() if self._take(folder / f"overlay-{number}.lock"))

    def release(self) -> None:
        self._lock.close()

    def _take(self, path: Path) -> bool:
        try:
            self._lock.enter_context(locked(path, f"{path} is held"))
        except ConflictError:
            return False
        return True
