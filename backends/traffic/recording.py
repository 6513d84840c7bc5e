"""One file of recorded traffic: a head, then blocks; each has its checksum.

    head    magic, format version, length, JSON that names process, outcomes and levels, XXH3-64
    block   mark, bytes of names, number of records, records that were lost before it, time of writing, XXH3-64
            names of hPLMs that the file did not have yet: a JSON line each, `["acme/returns", "mini", "shop"]`
            records, see `records`

Blocks are appended. Reading ends at the first that is torn or damaged, and what is before it counts.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from backends.errors import CorruptFileError, FormatVersionError
from backends.fields import Fields
from backends.storage import read_errors_are_clear
from backends.traffic.records import OUTCOMES, RECORD, RecordedHplm, Records
from backends.wire import LEVELS

SUFFIX = ".traffic"
_VERSION = 1
_MAGIC, _MARK = b"HPLMTRAF", b"HPTB"
_HEAD = struct.Struct("<8sII")
_BLOCK = struct.Struct("<4sIIqq")
_CHECKSUM = struct.Struct("<Q")
_MAX_HEAD_BYTES = 1 << 16
MOST_RECORDS = 1024
"""In one block."""
MOST_BLOCK_BYTES = 64 + MOST_RECORDS * (RECORD.itemsize + 420)
"""With a new hPLM in each record; names have 100 characters a part."""
_BLOCK_BYTES = _BLOCK.size + _CHECKSUM.size


@dataclass(frozen=True)
class Head:
    """Who wrote a file; `began_us` is the time since 1970. Outcomes and levels are named in the order of their numbers.

    `process` is the name of the model instance.
    """

    process: str
    host: str
    pid: int
    began_us: int
    outcomes: tuple[str, ...] = OUTCOMES
    levels: tuple[str, ...] = LEVELS

    def to_bytes(self) -> bytes:
        fields = json.dumps(asdict(self)).encode()
        return _with_checksum(_HEAD.pack(_MAGIC, _VERSION, len(fields)) + fields)


@dataclass(frozen=True)
class Block:
    """What was noted since the last block; `new_hplms` get the next numbers. One without records says: nothing came.

    Attributes:
        lost: Records that found no room in the buffer or on the disk since the last block.
        written_us: When it was written, since 1970.
    """

    records: Records
    new_hplms: Sequence[RecordedHplm]
    lost: int
    written_us: int

    def to_bytes(self) -> bytes:
        names = "".join(f"{json.dumps([one.id, one.root, one.domain])}\n" for one in self.new_hplms).encode()
        head = _BLOCK.pack(_MARK, len(names), len(self.records), self.lost, self.written_us)
        payload = names + self.records.tobytes()
        return head + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(head + payload)) + payload


@dataclass(frozen=True, eq=False)
class Recording:
    """What a file holds.

    Attributes:
        until_us: When its last whole block was written.
        lost: Records that its process had to leave out.
        damage: What is wrong with the rest of the file; None where all of it was read, or a crash tore the last block.
    """

    head: Head
    hplms: tuple[RecordedHplm, ...]
    records: Records
    until_us: int
    lost: int
    damage: str | None


class _DamagedError(Exception):
    """A block cannot be used."""


def read_recording(path: Path) -> Recording:
    """Read one file.

    Raises:
        UnreadableFileError: The file cannot be read.
        CorruptFileError: It is no recording, or its head is damaged.
        FormatVersionError: A newer release wrote it.
    """
    with read_errors_are_clear(path), path.open("rb") as file:
        first = file.read(_HEAD.size)
        head_bytes = _checked_head_bytes(first, path)
        head = _head_of(first + file.read(head_bytes + _CHECKSUM.size), path)
        content = file.read()
    hplms: list[RecordedHplm] = []
    parts, until_us, lost, damage = [np.empty(0, RECORD)], head.began_us, 0, None
    try:
        for block in _blocks(content, head):
            hplms += block.new_hplms
            parts.append(block.records)
            until_us, lost = block.written_us, lost + block.lost
    except _DamagedError as error:
        damage = f"{path} is damaged after {sum(map(len, parts)):,} records, and read no further: {error}"
    return Recording(head, tuple(hplms), np.concatenate(parts), until_us, lost, damage)


def _checked_head_bytes(first: bytes, path: Path) -> int:
    if not first.startswith(_MAGIC[: len(first)]):
        raise CorruptFileError(f"{path} is no recorded traffic")
    if len(first) < _HEAD.size:
        raise CorruptFileError(f"{path} ends within its head")
    _, version, head_bytes = _HEAD.unpack(first)
    if version > _VERSION:
        raise FormatVersionError(f"{path} has format version {version}; this release reads {_VERSION}")
    if version < 1 or head_bytes > _MAX_HEAD_BYTES:
        raise CorruptFileError(f"{path} has a damaged head")
    return int(head_bytes)


def _head_of(content: bytes, path: Path) -> Head:
    fields, checksum = content[: -_CHECKSUM.size], content[-_CHECKSUM.size :]
    if _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields)) != checksum:
        raise CorruptFileError(f"{path} has a damaged head")
    try:
        read = Fields(json.loads(fields[_HEAD.size :]), str(path))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} has a damaged head") from error
    outcomes, levels = tuple(read.texts("outcomes")), tuple(read.texts("levels"))
    return Head(read.text("process"), read.text("host"), read.whole("pid"), read.whole("began_us"), outcomes, levels)


def _blocks(content: bytes, head: Head) -> Iterator[Block]:
    """Yield the whole blocks; a torn one is the last, which was being written."""
    start = num_hplms = 0
    while len(content) - start >= _BLOCK_BYTES:
        mark, names_bytes, num_records, lost, written_us = _BLOCK.unpack_from(content, start)
        if mark != _MARK:
            raise _DamagedError(f"no block begins at byte {start:,} behind the head")
        payload_start = start + _BLOCK_BYTES
        end = payload_start + names_bytes + num_records * RECORD.itemsize
        if end > len(content):
            if end - start > MOST_BLOCK_BYTES:
                raise _DamagedError(f"the block at byte {start:,} behind the head is longer than any")
            return
        (checksum,) = _CHECKSUM.unpack_from(content, start + _BLOCK.size)
        checked = content[start : start + _BLOCK.size] + content[payload_start:end]
        if xxhash.xxh3_64_intdigest(checked) != checksum:
            raise _DamagedError(f"the block at byte {start:,} behind the head does not match its checksum")
        new = _names_of(content[payload_start : payload_start + names_bytes])
        num_hplms += len(new)
        records = np.frombuffer(content, RECORD, num_records, payload_start + names_bytes)
        _require_known(records, num_hplms, head)
        yield Block(records, new, lost, written_us)
        start = end


def _names_of(names: bytes) -> list[RecordedHplm]:
    try:
        lines = [json.loads(line) for line in names.splitlines()]
    except (ValueError, RecursionError) as error:
        raise _DamagedError("an hPLM has no name") from error
    return [RecordedHplm(*_three_texts(line)) for line in lines]


def _three_texts(line: Any) -> tuple[str, str, str]:
    match line:
        case [str(id), str(root), str(domain)]:
            return id, root, domain
    raise _DamagedError("an hPLM has no name")


def _require_known(records: Records, num_hplms: int, head: Head) -> None:
    bounds = {"hplm": num_hplms, "outcome": len(head.outcomes), "level": len(head.levels)}
    for column, bound in bounds.items():
        if len(records) and int(records[column].max()) >= bound:
            raise _DamagedError(f"a record has {column} {int(records[column].max())} of {bound}")


def _with_checksum(content: bytes) -> bytes:
    return content + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(content))
