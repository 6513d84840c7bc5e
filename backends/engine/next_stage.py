"""How far a stage may run ahead of the next one, where each is a process of its own.

A stage ends a batch and begins the next one only when the next stage computes at most the batch that it was given last:
then one batch waits there at most, and another one is on its way. So rows wait in front of the first stage, where they
are admitted, and what a batch takes there is what it takes in the slowest stage.
"""

from __future__ import annotations

import mmap
import threading
import time
from itertools import count
from pathlib import Path

from backends.heartbeat import Beat
from backends.server_folder import file_prefix, made_anew, mapped, server_folder

_SIZE_BYTES = 8
_LOOK_EVERY_S = 0.0005
_LONGEST_WAIT_S = 10.0
"""No batch takes so long. Then the next stage hangs, which its own heartbeat tells."""


class StageRows:
    """Tells how many rows wait or are computed in a stage."""

    def __init__(self, stage: int) -> None:
        self._path = _path_of(stage)
        self._memory = made_anew(self._path, _SIZE_BYTES)
        self._number = memoryview(self._memory).cast("q")
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count rows that have come or, below 0, ended; nothing once it is closed."""
        with self._lock:
            if not self._is_closed:
                self._number[0] += count

    @property
    def count(self) -> int:
        return self._number[0]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._number.release()
        self._memory.close()
        self._path.unlink(missing_ok=True)


class NextStage:
    """Waits until the next stage has room; called by one thread."""

    def __init__(self, stage: int) -> None:
        self._path = _path_of(stage)
        self._memory: mmap.mmap | None = None
        self._inode: int | None = None
        self._given = 0
        self._numbers = count(1)

    def wait_for_room(self, num_rows: int, beat: Beat) -> int:
        """Wait until a batch of so many rows may be sent on; returns its number.

        Args:
            num_rows: What it will be given.
            beat: Called while it waits.
        """
        self._follow()
        give_up_s = time.monotonic() + _LONGEST_WAIT_S
        while self._rows() > self._given and time.monotonic() < give_up_s:
            beat()
            time.sleep(_LOOK_EVERY_S)
        self._given = num_rows
        return next(self._numbers)

    def _rows(self) -> int:
        """Return the rows there; 0 before the next stage is loaded."""
        return 0 if self._memory is None else int.from_bytes(self._memory[:], "little", signed=True)

    def _follow(self) -> None:
        """Map the file that there is: a stage that is loaded anew writes another one of the same name."""
        try:
            inode = self._path.stat().st_ino
        except OSError:
            inode = None
        if inode != self._inode:
            self._memory = None if inode is None else mapped(self._path, _SIZE_BYTES)
            self._inode = None if self._memory is None else inode  # one that is being made is looked at again


def _path_of(stage: int) -> Path:
    return server_folder() / f"{file_prefix('rows')}-{stage}"
