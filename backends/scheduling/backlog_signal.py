"""How busy the engine is, for processes in front of it: when the answer to a new request would come at the earliest.

Some policies answer short rows first, so that is told for a few lengths. Who has not counted a row's tokens yet knows
how many they are at least.

A few numbers in a file that both map into memory, so that telling and asking cost a microsecond. What was told counts
for a second: an engine that has nothing to say, or that is gone, keeps nobody out.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

FOLDER_VARIABLE = "HPLM_SIGNALS"
"""Names a folder that goes with its server; without it the signals lie among the machine's temporary files."""
TOLD_LENGTHS = (1, 4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96)
"""Tokens of a row, or more up to the next."""
_FIELDS = struct.Struct(f"={len(TOLD_LENGTHS) + 1}q")
_CHECK = struct.Struct("=I")
_SIZE_BYTES = _FIELDS.size + _CHECK.size
_FRESH_US = 1_000_000
_LOOK_EVERY_US = 1_000_000


def _prefix() -> str:
    """The models' processes of one server have it for their parent."""
    return f"hplm-backlog-{os.getppid()}-"


def _folder() -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or tempfile.gettempdir())


class BacklogSignal:
    """What one engine tells. `name` is that of its model instance."""

    def __init__(self, name: str) -> None:
        self._path = _folder() / f"{_prefix()}{name}"
        self._path.unlink(missing_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _SIZE_BYTES)
            self._memory = mmap.mmap(descriptor, _SIZE_BYTES)
        finally:
            os.close(descriptor)

    def tell(self, finish_in_us: Sequence[float], now_us: int) -> None:
        """For a row of each of `TOLD_LENGTHS`, how long it would take at least."""
        told = _FIELDS.pack(now_us, *(now_us + int(in_us) for in_us in finish_in_us))
        self._memory[:] = told + _CHECK.pack(zlib.crc32(told))

    def close(self) -> None:
        self._memory.close()
        self._path.unlink(missing_ok=True)


class BacklogReader:
    """Reads what the engines of this server tell; new ones are looked for every second."""

    def __init__(self) -> None:
        self._signals: dict[tuple[Path, int], mmap.mmap] = {}
        """By path and inode: an engine that is loaded anew writes another file of the same name."""
        self._look_at_us = 0

    def close(self) -> None:
        for memory in self._signals.values():
            memory.close()
        self._signals.clear()

    def earliest_finish_us(self, now_us: int, least_tokens: int = 1) -> int:
        """When the answer to a row that comes now would be there at the earliest; `now_us` if nobody can tell."""
        if now_us >= self._look_at_us:
            self._look()
            self._look_at_us = now_us + _LOOK_EVERY_US
        place = bisect_right(TOLD_LENGTHS, max(1, least_tokens)) - 1
        told = [_read(memory, place, now_us) for memory in self._signals.values()]
        return max(now_us, min(told, default=now_us))

    def _look(self) -> None:
        found = {(path, inode) for path in _folder().glob(f"{_prefix()}*") if (inode := _inode(path)) is not None}
        for signal in self._signals.keys() - found:
            self._signals.pop(signal).close()
        for path, inode in found - self._signals.keys():
            memory = _mapped(path)
            if memory is not None:
                self._signals[path, inode] = memory


def _inode(path: Path) -> int | None:
    """None for a file that is gone meanwhile."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _mapped(path: Path) -> mmap.mmap | None:
    """None for a file that is gone meanwhile, not written yet, or another user's."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            return mmap.mmap(file.fileno(), _SIZE_BYTES, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None


def _read(memory: mmap.mmap, place: int, now_us: int) -> int:
    """A torn or an old signal says nothing."""
    signal = memory[:]
    told, (check,) = signal[: _FIELDS.size], _CHECK.unpack(signal[_FIELDS.size :])
    told_us, *finish_us = _FIELDS.unpack(told)
    is_good = zlib.crc32(told) == check and 0 <= now_us - told_us <= _FRESH_US
    return int(finish_us[place]) if is_good else now_us
