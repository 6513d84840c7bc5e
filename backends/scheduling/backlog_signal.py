"""How busy the engine is, for processes in front of it: when the answer to a new request would come at the earliest.

It is an `Outlook`: by the length of a row, because some policies answer short ones first, and longer for tenants beyond
their shares. Who has not counted a row's tokens yet knows how many they are at least.

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
from collections.abc import Iterable, Set
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from backends.scheduling.outlook import TOLD_LENGTHS, TOLD_TENANTS, Outlook

FOLDER_VARIABLE = "HPLM_SIGNALS"
"""Names a folder that goes with its server; without it the signals lie among the machine's temporary files."""
_NUM_LENGTHS = len(TOLD_LENGTHS)
_NAME_BYTES = 8
_FIELDS = struct.Struct(f"={1 + _NUM_LENGTHS}q" + f"{_NAME_BYTES}sq" * TOLD_TENANTS)
"""When it was told; when rows would be answered, by length; tenants and when theirs would be."""
_NOBODY = bytes(_NAME_BYTES)
_CHECK = struct.Struct("=I")
_SIZE_BYTES = _FIELDS.size + _CHECK.size
_FRESH_US = 1_000_000
_FURTHEST_US = 10**15
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

    def tell(self, outlook: Outlook, now_us: int) -> None:
        tenants = [(_short(name), _after(now_us, in_us)) for name, in_us in outlook.tenants_in_us.items()]
        tenants += [(_NOBODY, 0)] * (TOLD_TENANTS - len(tenants))
        finish_us = [_after(now_us, in_us) for in_us in outlook.finish_in_us]
        told = _FIELDS.pack(now_us, *finish_us, *chain.from_iterable(tenants))
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

    def earliest_finish_us(self, now_us: int, least_tokens: int = 1, tenants: Iterable[str] = ()) -> int:
        """When the answer to a row that comes now would be there at the earliest; `now_us` if nobody can tell.

        Of rows of several tenants, when the last one would be.
        """
        if now_us >= self._look_at_us:
            self._look()
            self._look_at_us = now_us + _LOOK_EVERY_US
        place = bisect_right(TOLD_LENGTHS, max(1, least_tokens)) - 1
        names = {_short(tenant) for tenant in tenants}
        told = [_read(memory, place, names, now_us) for memory in self._signals.values()]
        return max(now_us, min(told, default=now_us))

    def _look(self) -> None:
        found = {(path, inode) for path in _folder().glob(f"{_prefix()}*") if (inode := _inode(path)) is not None}
        for signal in self._signals.keys() - found:
            self._signals.pop(signal).close()
        for path, inode in found - self._signals.keys():
            memory = _mapped(path)
            if memory is not None:
                self._signals[path, inode] = memory


def _after(now_us: int, in_us: float) -> int:
    """A cost model may predict more than the file has room for."""
    return now_us + int(min(in_us, _FURTHEST_US))


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


def _read(memory: mmap.mmap, place: int, names: Set[bytes], now_us: int) -> int:
    """A torn or an old signal says nothing."""
    signal = memory[:]
    told, (check,) = signal[: _FIELDS.size], _CHECK.unpack(signal[_FIELDS.size :])
    told_us, *fields = _FIELDS.unpack(told)
    if zlib.crc32(told) != check or not 0 <= now_us - told_us <= _FRESH_US:
        return now_us
    finish_us, tenants = fields[:_NUM_LENGTHS], fields[_NUM_LENGTHS:]
    of_tenants = [us for name, us in zip(tenants[::2], tenants[1::2], strict=True) if name in names]
    return int(max(finish_us[place], *of_tenants)) if of_tenants else int(finish_us[place])


def _short(tenant: str) -> bytes:
    """Never that of nobody, and of two tenants hardly ever the same."""
    return blake2b(tenant.encode(), digest_size=_NAME_BYTES).digest()
