"""Buckets that the processes of one server fill together: a file in memory, each pair of buckets under its own lock."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.scheduling.wait_forecast import FOLDER_VARIABLE

_PAIR = struct.Struct("=qdd")
_NUM_PAIRS = 1 << 20
"""Far more than there are tenants with quotas; beyond them, some would share a pair."""
_SIZE_BYTES = _NUM_PAIRS * _PAIR.size


@dataclass
class Pair:
    """What is used of two buckets, as of a time on the machine's monotonic clock."""

    at_us: int
    used: tuple[float, float]


class SharedBuckets:
    """The pairs of one server, by number. The file has holes where no pair was used, which take no memory."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the file, or make it; by default the one that the models' processes of this server share."""
        self._descriptor = _opened(path or _path_of_server())
        os.ftruncate(self._descriptor, _SIZE_BYTES)
        self._memory = mmap.mmap(self._descriptor, _SIZE_BYTES)

    @contextmanager
    def locked(self, number: int) -> Iterator[Pair]:
        """Yield a pair that no other process changes meanwhile; what becomes of it is kept."""
        offset = number % _NUM_PAIRS * _PAIR.size
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, _PAIR.size, offset)
        try:
            at_us, *used = _PAIR.unpack_from(self._memory, offset)
            pair = Pair(at_us, (used[0], used[1]))
            yield pair
            _PAIR.pack_into(self._memory, offset, pair.at_us, *pair.used)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, _PAIR.size, offset)

    def close(self) -> None:
        self._memory.close()
        os.close(self._descriptor)


def _path_of_server() -> Path:
    """The models' processes of one server have it for their parent."""
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir()) / f"hplm-quotas-{os.getppid()}"


def _opened(path: Path) -> int:
    """Open the file; a process goes by buckets of its own where another user has put one there."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
