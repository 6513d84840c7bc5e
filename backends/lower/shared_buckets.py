"""Buckets that the processes of one server fill together: a file, each pair of buckets in it under its own lock."""

from __future__ import annotations

import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from backends.server_folder import file_prefix, server_folder

_PAIR = struct.Struct("=qdd")
_NUM_PAIRS = 1 << 20
"""Far more than there are tenants with quotas; beyond them, some would share a pair."""


@dataclass
class Pair:
    """What is used of two buckets, as of a time on the machine's monotonic clock."""

    at_us: int
    used: tuple[float, float]


class SharedBuckets:
    """The pairs of one server, by number. The file has holes where no pair was used, which take no room."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file, or make it; by default the one that the models' processes of this server share."""
        self._descriptor = _opened(path or server_folder() / file_prefix("quotas"))

    @contextmanager
    def locked(self, number: int) -> Iterator[Pair]:
        """Yield a pair that no other process changes meanwhile; what becomes of it is kept, if the disk has room."""
        offset = number % _NUM_PAIRS * _PAIR.size
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, _PAIR.size, offset)
        try:
            content = os.pread(self._descriptor, _PAIR.size, offset)
            at_us, *used = _PAIR.unpack(content.ljust(_PAIR.size, b"\0"))
            pair = Pair(at_us, (used[0], used[1]))
            yield pair
            with suppress(OSError):  # mapped, a page without room on the disk would end the process
                os.pwrite(self._descriptor, _PAIR.pack(pair.at_us, *pair.used), offset)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, _PAIR.size, offset)

    def close(self) -> None:
        os.close(self._descriptor)


def _opened(path: Path) -> int:
    """Open the file; a process goes by buckets of its own where another user has put one there."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
