"""Files of equal entries with one checksum per block: written in a stream, checked where they are first touched."""

from __future__ import annotations

import mmap
import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from backends.errors import CorruptFileError
from backends.plot.header import BlockedFile
from backends.storage import check_file, disk_full_is_an_error

_SUM = np.dtype("<u8")


def sums_path(path: Path) -> Path:
    return path.with_name(path.name + ".sums")


def block_entries_for(entry_bytes: int, block_bytes: int) -> int:
    """The largest power of two of entries that stays within `block_bytes`; at least one."""
    return 1 << max(0, (block_bytes // entry_bytes).bit_length() - 1)


def file_bytes(entries: int, entry_bytes: int, block_bytes: int) -> int:
    """The size of a file and of its checksums."""
    blocks = -(-entries // block_entries_for(entry_bytes, block_bytes))
    return entries * entry_bytes + blocks * _SUM.itemsize


class BlockedFileWriter:
    """Appends entries and their blocks' checksums; the first `entries` that lie in the file already are kept."""

    def __init__(self, path: Path, entry_bytes: int, block_bytes: int, entries: int = 0) -> None:
        self._path = path
        self._entry_bytes = entry_bytes
        self._block_entries = block_entries_for(entry_bytes, block_bytes)
        self._block_bytes = self._block_entries * entry_bytes
        self.entries = entries
        self._data = _open_cut(path, entries * entry_bytes)
        self._sums = _open_cut(sums_path(path), entries // self._block_entries * _SUM.itemsize)
        self._tail = self._read_tail()

    def append(self, entries: npt.NDArray[Any]) -> None:
        """Write whole entries, byte for byte as they lie in the array."""
        data = np.ascontiguousarray(entries).reshape(-1).view(np.uint8).data
        with disk_full_is_an_error(self._path):
            _write_all(self._data, data)
            _write_all(self._sums, self._sums_of_full_blocks(data))
        self.entries += len(data) // self._entry_bytes

    def sync(self) -> None:
        """Make everything that was appended durable."""
        with disk_full_is_an_error(self._path):
            os.fsync(self._data.fileno())
            os.fsync(self._sums.fileno())

    def finish(self) -> BlockedFile:
        """Close the file with the checksum of its last block and describe it."""
        if self._tail:
            with disk_full_is_an_error(self._path):
                _write_all(self._sums, _sums([self._tail]))
        self.sync()
        self.close()
        checksum = xxhash.xxh3_128_hexdigest(sums_path(self._path).read_bytes())
        return BlockedFile(self._path.name, self.entries, self._entry_bytes, self._block_entries, checksum)

    def close(self) -> None:
        self._data.close()
        self._sums.close()

    def _sums_of_full_blocks(self, data: memoryview) -> memoryview:
        missing = self._block_bytes - len(self._tail)
        if len(data) < missing:
            self._tail += data
            return memoryview(b"")
        first = self._tail + data[:missing]
        ends = range(missing + self._block_bytes, len(data) + 1, self._block_bytes)
        self._tail = bytearray(data[missing + len(ends) * self._block_bytes :])
        return _sums([first, *(data[end - self._block_bytes : end] for end in ends)])

    def _read_tail(self) -> bytearray:
        tail_bytes = self.entries % self._block_entries * self._entry_bytes
        with self._path.open("rb") as file:
            file.seek(self.entries * self._entry_bytes - tail_bytes)
            return bytearray(file.read())


class CheckedFile:
    """A read-only memory map whose blocks are compared with their checksums when they are first touched.

    The map goes away with the last reference to this object and to the arrays it gave out.
    """

    def __init__(self, folder: Path, layout: BlockedFile) -> None:
        self.layout = layout
        self._path = folder / layout.name
        self._sums = _read_sums(self._path, layout)
        with self._path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), layout.size_bytes, prot=mmap.PROT_READ)
        # Entries are touched at random, so reading ahead would only push hot pages out.
        self._map.madvise(mmap.MADV_RANDOM)
        self._checked = np.zeros(layout.blocks, np.bool_)
        self._shift = layout.block_entries.bit_length() - 1
        self._all_checked = False

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """The mapped entries, one row each, without a copy."""
        return np.frombuffer(self._map, dtype).reshape(self.layout.entries, -1)

    def check(self, entries: npt.NDArray[np.int64]) -> None:
        """Make sure that the blocks of these entries are as they were written."""
        if self._all_checked:
            return
        blocks = entries >> self._shift
        known = self._checked.take(blocks)
        if not known.all():
            self._check_blocks(np.unique(blocks[~known]))
            self._all_checked = bool(self._checked.all())

    def check_all(self) -> None:
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        self._check_blocks(np.arange(self.layout.blocks))
        self._map.madvise(mmap.MADV_RANDOM)
        self._all_checked = True

    def _check_blocks(self, blocks: npt.NDArray[np.int64]) -> None:
        size = self.layout.block_bytes
        view = memoryview(self._map)
        if blocks.size < self.layout.blocks:
            self._read_ahead(blocks)
        for block, expected in zip(blocks.tolist(), self._sums[blocks].tolist(), strict=True):
            if xxhash.xxh3_64_intdigest(view[block * size : (block + 1) * size]) != expected:
                raise CorruptFileError(f"{self._path} does not match its checksum in block {block}")
        self._checked[blocks] = True

    def _read_ahead(self, blocks: npt.NDArray[np.int64]) -> None:
        """Ask for all blocks at once, so that a slow disk works on them side by side."""
        first_bytes = blocks * self.layout.block_bytes
        end_bytes = np.minimum(first_bytes + self.layout.block_bytes, self.layout.size_bytes)
        aligned = first_bytes - first_bytes % mmap.PAGESIZE
        for start, length in zip(aligned.tolist(), (end_bytes - aligned).tolist(), strict=True):
            self._map.madvise(mmap.MADV_WILLNEED, start, length)


def _open_cut(path: Path, size_bytes: int) -> FileIO:
    """Open for appending after cutting off what a kill left behind `size_bytes`."""
    file = FileIO(path, "ab")
    if file.seek(0, os.SEEK_END) < size_bytes:
        file.close()
        raise CorruptFileError(f"{path} is shorter than the {size_bytes} bytes that were recorded as written")
    file.truncate(size_bytes)
    return file


def _write_all(file: FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _sums(blocks: list[bytearray | memoryview]) -> memoryview:
    return np.array([xxhash.xxh3_64_intdigest(block) for block in blocks], _SUM).data.cast("B")


def _read_sums(path: Path, layout: BlockedFile) -> npt.NDArray[np.uint64]:
    check_file(path, layout.size_bytes)
    check_file(sums_path(path), layout.blocks * _SUM.itemsize)
    content = sums_path(path).read_bytes()
    if xxhash.xxh3_128_hexdigest(content) != layout.sums_checksum:
        raise CorruptFileError(f"{sums_path(path)} does not match its checksum")
    return np.frombuffer(content, _SUM)
