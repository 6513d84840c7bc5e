"""The files of one process, one after the other, and how much of the disk those of all processes take.

A file is locked as long as its process writes it. Processes take room from what all of them may use, a part at a time,
and before they do they remove the oldest files that nobody writes. The more processes write, the shorter are their
files, so that there are some to remove.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedRandom, FileIO
from pathlib import Path

from backends.clock import now_us
from backends.errors import StorageFullError
from backends.registry.entries import HplmEntry
from backends.traffic.recording import MOST_BLOCK_BYTES, SUFFIX, Block, Head
from backends.traffic.records import RecordedHplm, Records
from backends.traffic.settings import TrafficSettings

_LONGEST_US, _LONGEST_EMPTY_US = 3_600_000_000, 86_400_000_000
"""A file is followed by the next one after the first time; while it has no records, after the second."""
_CLOCK_SET_US = 1_000_000
"""The wall clock has been set if it differs by more from the one that only goes on."""
_PARTS, _MOST_PART_BYTES = 64, 1 << 20
"""How the room of all files is dealt. Each process that writes has a part at least."""
_FILES_OF_EACH = 4
_MODE = 0o600


def _wall_us() -> int:
    return time.time_ns() // 1000


class Segments:
    """Writes records of one process. Not safe between threads.

    Times are of the monotonic clock; each file notes once what the wall clock says. So gaps between requests stay true
    where the wall clock is set, and the next file has the new time.

    Args:
        folder: Of all processes; it is made when the first file begins.
        process: Name of the model instance.
        settings: Limits of the folder.
        wall_us: The wall clock, in microseconds since 1970.
    """

    def __init__(
        self, folder: Path, process: str, settings: TrafficSettings, wall_us: Callable[[], int] = _wall_us
    ) -> None:
        self._folder = folder
        self._process = process
        self._settings = settings
        self._wall_us = wall_us
        self._most_bytes = settings.file_bytes
        self._segment: _Segment | None = None

    def append(self, records: Records, entries: Sequence[HplmEntry], lost: int = 0) -> None:
        """Write a block of records whose `arrived_us` are monotonic, and which get the numbers of their hPLMs here.

        A file begins where there is none, or the present one is full, old, gone, or of another wall clock. Where that
        or the writing fails, the present file ends with the block before.

        Args:
            records: MOST_RECORDS at most.
            entries: The hPLM of each.
            lost: Number of records that were left out since the last block.

        Raises:
            StorageFullError: Files that processes write now take all the room.
            OSError: The folder or the file cannot be written to.
        """
        segment = self._current()
        try:
            segment.append(records, entries, lost)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def _current(self) -> _Segment:
        segment = self._segment
        is_due = segment is None or segment.is_due(self._most_bytes, self._offset_us())
        if segment is not None and not is_due and (segment.has_room or self._takes_room(segment)):
            return segment
        self.close()
        self._make_room(self._part_bytes)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._segment = _Segment.begin(self._folder, self._process, self._offset_us(), self._part_bytes)
        return self._segment

    def _offset_us(self) -> int:
        return self._wall_us() - now_us()

    @property
    def _part_bytes(self) -> int:
        return max(min(self._settings.max_bytes // _PARTS, _MOST_PART_BYTES), MOST_BLOCK_BYTES)

    def _takes_room(self, segment: _Segment) -> bool:
        """Let a file grow by a part; where there is no room, it is time for the next one, and for it to be removed."""
        try:
            self._make_room(0)
        except StorageFullError:
            return False
        segment.grow_by(self._part_bytes)
        return True

    def _make_room(self, more_bytes: int) -> None:
        """Remove old files, and the oldest until there is room; each file that is written now may grow by a part."""
        # By the last change: names of one second are in no order.
        settings, files = self._settings, sorted(_files_in(self._folder), key=lambda file: file.changed_s)
        share_bytes = settings.max_bytes // (_FILES_OF_EACH * max(1, sum(file.is_written for file in files)))
        self._most_bytes = min(settings.file_bytes, max(share_bytes, 2 * self._part_bytes))
        total = more_bytes + sum(file.size_bytes + self._part_bytes * file.is_written for file in files)
        oldest_s = self._wall_us() / 1e6 - settings.max_age_s
        for file in files:
            if not file.is_written and (total > settings.max_bytes or file.changed_s < oldest_s):
                file.path.unlink(missing_ok=True)
                total -= file.size_bytes
        if total > settings.max_bytes:
            taken = f"files that servers write now take all of the {settings.max_mb} MB"
            raise StorageFullError(f"{taken}; `hplm export --traffic-mb` allows more")


@dataclass(frozen=True)
class _File:
    """A file of the folder, also of another process."""

    path: Path
    size_bytes: int
    changed_s: float
    is_written: bool


def _files_in(folder: Path) -> Iterator[_File]:
    """Yield the files that are still there."""
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError), path.open("r+b") as file:  # it may be gone by now
            status = os.fstat(file.fileno())
            yield _File(path, status.st_size, status.st_mtime, not _can_lock(file))


def _can_lock(file: FileIO | BufferedRandom) -> bool:
    """Lock a file that no process has locked, until it is closed; false where the file system keeps no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class _Segment:
    """One file that is being written."""

    def __init__(self, path: Path, file: FileIO, offset_us: int, size_bytes: int, room_bytes: int) -> None:
        self._path = path
        self._file = file
        self._offset_us = offset_us
        self._size_bytes = size_bytes
        self._room_bytes = room_bytes
        self._began_us = now_us()
        self._num_records = 0
        self._numbers: dict[int, int] = {}
        """The number of each hPLM version, by its key; versions of one hPLM have one each."""

    @classmethod
    def begin(cls, folder: Path, process: str, offset_us: int, room_bytes: int) -> _Segment:
        began_us = now_us() + offset_us
        moment = datetime.fromtimestamp(began_us / 1e6, UTC)
        path = folder / f"{moment:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}{SUFFIX}"
        file = FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODE), "w")
        try:
            with suppress(OSError):  # where the file system keeps no locks, none is removed either
                fcntl.flock(file, fcntl.LOCK_EX)  # waits for a process that is just looking
            head = Head(process, socket.gethostname(), os.getpid(), began_us).to_bytes()
            _write_all(file, head)
        except OSError:
            path.unlink(missing_ok=True)
            file.close()
            raise
        return cls(path, file, offset_us, len(head), len(head) + room_bytes)

    @property
    def has_room(self) -> bool:
        """Whether the next block is sure to fit in the room that it has."""
        return self._size_bytes + MOST_BLOCK_BYTES <= self._room_bytes

    def grow_by(self, room_bytes: int) -> None:
        self._room_bytes = self._size_bytes + room_bytes

    def is_due(self, most_bytes: int, offset_us: int) -> bool:
        """Whether the next file is to begin."""
        if not self._path.exists() or abs(offset_us - self._offset_us) > _CLOCK_SET_US:
            return True
        longest_us = _LONGEST_US if self._num_records else _LONGEST_EMPTY_US
        return self._size_bytes + MOST_BLOCK_BYTES > most_bytes or now_us() - self._began_us > longest_us

    def append(self, records: Records, entries: Sequence[HplmEntry], lost: int) -> None:
        numbers, new = self._numbers, []
        for entry in entries:
            if entry.key not in numbers:
                numbers[entry.key] = len(numbers)
                new.append(RecordedHplm(entry.id, entry.domain.root, entry.domain.name))
        records["hplm"] = [numbers[entry.key] for entry in entries]
        records["arrived_us"] += self._offset_us
        content = Block(records, new, lost, now_us() + self._offset_us).to_bytes()
        try:
            _write_all(self._file, content)
        except OSError:
            with suppress(OSError):
                self._file.truncate(self._size_bytes)
            raise
        self._size_bytes += len(content)
        self._num_records += len(records)

    def close(self) -> None:
        with suppress(OSError):
            os.fsync(self._file.fileno())
        with suppress(OSError):
            self._file.close()


def _write_all(file: FileIO, content: bytes) -> None:
    """Write all of it; the file has no buffer, so that nothing is written later."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
