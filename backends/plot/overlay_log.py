"""Learned fragments on disk: beside a table, logs of each process that learns, appended to and never rewritten in part.

    plots/<root>/<domain>@<version>.overlay/
        <seat>-<layers>.log     a header, then records of one size, each with its checksum
        <seat>-<layers>.uses    how often each was used lately; rewritten now and then

Only the process with that seat writes a log (see `overlay_seat`), one for each origin (lower layers, and how int8
rounded them) that it ever had; all read it. A torn record at the end is cut off by the next append, a record that does
not match its checksum is left out, the vectors of another origin are ignored. Earlier releases left out `<layers>`;
the process with the seat renames such a log if it is of its origin, and else reads it as any other. `hplm domain
update` asks `overlay_keys(table_folder, key)` for what was learned, and computes the values anew.
"""

from __future__ import annotations

import logging
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedRandom, FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from backends.plot.arrays import Float16Array, Found, Keys
from backends.plot.header import stores_of
from backends.storage import disk_full_is_an_error, read_errors_are_clear, write_file

LOGGER = logging.getLogger(__name__)
Uses = npt.NDArray[np.uint32]
Records = npt.NDArray[Any]

_MAGIC = b"HPLMOVL1"
_HEADER = struct.Struct("<8s32sIIQ")
_CHECKSUM = struct.Struct("<Q")
_HEADER_BYTES = _HEADER.size + _CHECKSUM.size
_READ_RECORDS = 1024
_DIGEST_BYTES = 16
_NAME_DIGITS = 8


@dataclass(frozen=True)
class FragmentLayout:
    """Layout of an entry: a key, and the vectors of all its slots, `width` fp16 numbers."""

    n: int
    width: int

    @property
    def key(self) -> np.dtype[Any]:
        return stores_of(self.n)[0].key_dtype

    @property
    def entry_bytes(self) -> int:
        return self.key.itemsize + 2 * self.width

    @property
    def record(self) -> np.dtype[Any]:
        return np.dtype([("checksum", "<u8"), ("key", self.key), ("vectors", "<f2", (self.width,))])


@dataclass(frozen=True)
class LogOrigin:
    """Header of a log; `identity`, 32 characters, names the lower layers that made it, and how int8 rounded them."""

    identity: str
    layout: FragmentLayout

    def log_of(self, folder: Path, seat: int) -> Path:
        """Name the log of the process with this seat. Those of other origins stay, for a domain's next version."""
        return folder / f"{seat}-{self.identity[:_NAME_DIGITS]}.log"

    def header(self) -> bytes:
        """The beginning of a new log; no two are equal, so that readers notice when one replaces another."""
        identity, nonce = self.identity.encode(), secrets.randbits(64)
        fields = _HEADER.pack(_MAGIC, identity, self.layout.n, self.layout.width, nonce)
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def of(cls, header: bytes) -> LogOrigin | None:
        """Read a log's header; None where it is damaged or torn."""
        fields, checksum = header[: _HEADER.size], header[_HEADER.size : _HEADER_BYTES]
        if _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields)) != checksum:
            return None
        magic, identity, n, width, _ = _HEADER.unpack(fields)
        return cls(identity.decode(errors="replace"), FragmentLayout(n, width)) if magic == _MAGIC else None


@dataclass(frozen=True)
class LearnedFragments:
    """Distinct fragments in the order of their keys, and how often they were used lately.

    Shape: keys, uses [F]
    """

    keys: Keys
    uses: Uses

    @classmethod
    def merged(cls, parts: Sequence[LearnedFragments], key: np.dtype[Any]) -> LearnedFragments:
        """The uses of equal keys are summed; `key` is the type of a key."""
        keys = np.concatenate([np.empty(0, key), *(part.keys for part in parts)])
        uses = np.concatenate([np.empty(0, np.uint32), *(part.uses for part in parts)])
        distinct, inverse = np.unique(keys, return_inverse=True)
        return cls(distinct, np.bincount(inverse, uses, distinct.size).astype(np.uint32))

    def uses_of(self, keys: Keys) -> Uses:
        """Return how often fragments were used; zero for those that are missing.

        Shape: [K] -> [K]
        """
        if not self.keys.size:
            return np.zeros(keys.size, np.uint32)
        indices = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[indices] == keys, self.uses[indices], np.uint32(0))


def overlay_folder(table_folder: Path) -> Path:
    """Name the folder where the processes that serve a table keep the fragments that it lacks."""
    return table_folder.with_name(table_folder.name + ".overlay")


def overlay_keys(table_folder: Path, key: np.dtype[Any]) -> LearnedFragments:
    """Read what all processes have learned beside a table, each used at least once; damaged records are left out."""
    folder = overlay_folder(table_folder)
    with read_errors_are_clear(folder):
        logs = [log_keys(path, key) for path in folder.glob("*.log")]
        noted = [read_uses(path, key) for path in folder.glob("*.uses")]
    learned = [*(LearnedFragments(keys, np.ones(keys.size, np.uint32)) for keys in logs), *noted]
    return LearnedFragments.merged(learned, key)


def log_keys(path: Path, key: np.dtype[Any]) -> Keys:
    """The keys of a log's whole records."""
    origin = LogOrigin.of(read_header(path))
    found = [np.empty(0, key)]
    if origin is not None and origin.layout.key == key:
        found += [records["key"] for records in LogReader(path, origin).read()]
    return np.concatenate(found)


def read_header(path: Path) -> bytes:
    """The first bytes of a log, or none where there is no log."""
    try:
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""


class LogReader:
    """Reader of a log that other processes may append to; each read goes on at the end of the last."""

    def __init__(self, path: Path, origin: LogOrigin) -> None:
        self.path = path
        self._origin = origin
        self._header = b""
        self._is_ours = False
        self._end = _HEADER_BYTES

    def read(self) -> Iterator[Records]:
        """Whole records, some at a time; a log that was replaced meanwhile is read from its beginning."""
        with self.path.open("rb", buffering=0) as file:
            self._note(file.read(_HEADER_BYTES))
            while self._is_ours and (records := self._next(file)).size:
                self._end += records.nbytes
                yield self._sound(records)

    def _next(self, file: FileIO) -> Records:
        """Read the records after the last whole one; the last read may have seen a part of them."""
        record = self._origin.layout.record
        file.seek(self._end)
        content = file.read(_READ_RECORDS * record.itemsize)
        return np.frombuffer(content, record, len(content) // record.itemsize)

    def _note(self, header: bytes) -> None:
        if header == self._header:
            return
        self._header, self._end = header, _HEADER_BYTES
        origin = LogOrigin.of(header)
        self._is_ours = origin == self._origin
        if origin is None:
            LOGGER.warning("%s is damaged; its vectors are ignored", self.path)
        elif not self._is_ours:
            LOGGER.info("%s is of other lower layers, or otherwise rounded by int8; it stays, unread", self.path)

    def _sound(self, records: Records) -> Records:
        sound = checksums(records) == records["checksum"]
        if not sound.all():
            LOGGER.warning("%s: %d damaged records are left out", self.path, np.count_nonzero(~sound))
        whole: Records = records[sound]
        return whole


class LogWriter:
    """The log of the process that has the seat. Every append leaves a file that can be read, however it ends."""

    def __init__(self, path: Path, origin: LogOrigin) -> None:
        self.path = path
        self._origin = origin

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def append(self, keys: Keys, vectors: Float16Array) -> None:
        """Add fragments that the log lacks.

        Shape: keys [K], vectors [K, width]
        """
        records = np.empty(keys.size, self._origin.layout.record)
        records["key"], records["vectors"] = keys, vectors
        records["checksum"] = checksums(records)
        self.path.parent.mkdir(exist_ok=True)
        with disk_full_is_an_error(self.path), self._open() as file:
            file.write(records.data)

    def compact(self, is_kept: Callable[[Keys], Found]) -> None:
        """Write the log anew with the kept fragments only."""
        staged = LogWriter(self.path.with_suffix(".new"), self._origin)
        try:
            write_file(staged.path, self._origin.header())
            for records in LogReader(self.path, self._origin).read():
                kept = records[is_kept(records["key"])]
                staged.append(kept["key"], kept["vectors"])
            staged.path.replace(self.path)
        finally:
            staged.path.unlink(missing_ok=True)

    def _open(self) -> BufferedRandom:
        """Open the log at the end of its last whole record, or of the header of a new log."""
        if LogOrigin.of(read_header(self.path)) != self._origin:
            write_file(self.path, self._origin.header())
        file = self.path.open("r+b")
        size_bytes = file.seek(0, os.SEEK_END)
        file.truncate(file.seek(size_bytes - (size_bytes - _HEADER_BYTES) % self._origin.layout.record.itemsize))
        return file


def checksums(records: Records) -> npt.NDArray[np.uint64]:
    """The checksum of every record's key and vectors.

    Shape: [R] -> [R]
    """
    content = np.ascontiguousarray(records).view(np.uint8).reshape(-1, records.dtype.itemsize)[:, _CHECKSUM.size :]
    return np.fromiter((xxhash.xxh3_64_intdigest(row) for row in content), np.uint64, records.size)


def write_uses(path: Path, fragments: LearnedFragments) -> None:
    content = np.empty(fragments.keys.size, _use(fragments.keys.dtype))
    content["key"], content["uses"] = fragments.keys, fragments.uses
    body = content.tobytes()
    write_file(path, xxhash.xxh3_128_digest(body) + body)


def read_uses(path: Path, key: np.dtype[Any]) -> LearnedFragments:
    """Read the file of `write_uses`; a damaged one counts as empty."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    is_whole = xxhash.xxh3_128_digest(body) == digest and len(body) % _use(key).itemsize == 0
    counted = np.frombuffer(body if is_whole else b"", _use(key))
    return LearnedFragments(counted["key"].copy(), counted["uses"].copy())


def _use(key: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype([("key", key), ("uses", "<u4")])
