"""Keeps a server's log within a size. Its processes append to one open file, so its content is moved, not the file."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class LogRotation:
    """Moves a full log to `<name>.1`, in place of what was moved before. On a full disk it is dropped instead.

    Processes must have opened the log for appending. Lines that they write during the last step may be lost.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    @property
    def moved(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def rotate_if_full(self, log: BinaryIO) -> None:
        """Rotate the open log once it is full, to be read from its beginning; of several servers only one does."""
        if os.fstat(log.fileno()).st_size <= self._max_bytes:
            return
        with suppress(BlockingIOError):
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if os.fstat(log.fileno()).st_size > self._max_bytes:
                    self._rotate()
                    log.seek(0)
            finally:
                fcntl.flock(log, fcntl.LOCK_UN)

    def _rotate(self) -> None:
        self.moved.unlink(missing_ok=True)
        try:
            shutil.copyfile(self._path, self.moved)
        except OSError:
            self.moved.unlink(missing_ok=True)
        os.truncate(self._path, 0)
