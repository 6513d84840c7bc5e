"""Rows of hidden states on disk, mapped into memory: they cost RAM only while they are used.

A store can be deleted at any time; it is made again when it is needed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.errors import CorruptFileError
from backends.root.words import RowWords
from backends.storage import check_file, disk_full_is_an_error, fsync_folder, read_json, remove_folder, write_json

EncodedRow = tuple[npt.NDArray[np.float16], RowWords | None, int | None]
"""One text's hidden rows `[L, H]`, its words where requested, and a pair's first token of the second segment."""
_HIDDEN = "hidden.f16"
_LARGEST = torch.finfo(torch.float16).max
_UNREADABLE = (CorruptFileError, OSError, ValueError, EOFError)


@dataclass(frozen=True)
class StateRows(Sequence[Tensor]):
    """Hidden rows; a row of a pair, or of words, knows where these are.

    Shape:
        hidden: `[T, H]` fp16; row_offsets: `[R + 1]`; ends_of_first: `[R]`, of a single text its length; where words
        were requested, word_table: `[ΣW, 3]` with the fields of `RowWords`; word_offsets: `[R + 1]`.
    """

    hidden: npt.NDArray[np.float16]
    row_offsets: npt.NDArray[np.int64]
    ends_of_first: npt.NDArray[np.int64]
    word_table: npt.NDArray[np.int32] | None = None
    word_offsets: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        start, end = self.row_offsets[index], self.row_offsets[index + 1]
        return torch.from_numpy(np.array(self.hidden[start:end]))

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.row_offsets)

    @cached_property
    def middles(self) -> list[int | None]:
        ends = zip(self.ends_of_first.tolist(), self.lengths.tolist(), strict=True)
        return [end if end < length else None for end, length in ends]

    @property
    def words(self) -> list[RowWords | None]:
        if self.word_table is None or self.word_offsets is None:
            return [None] * len(self)
        tables = np.split(self.word_table, self.word_offsets[1:-1])
        return [RowWords(*(np.ascontiguousarray(column) for column in table.T)) for table in tables]


def as_float16(states: Tensor) -> npt.NDArray[np.float16]:
    """Return states as they are stored; those that are too large become the largest."""
    return states.clamp(-_LARGEST, _LARGEST).to(torch.float16).numpy()


def stored_rows(store: Path, encode: Callable[[], Iterator[EncodedRow]]) -> StateRows:
    """Read the rows of a folder, or encode and store them there."""
    known = find_rows(store)
    return _make(store, encode) if known is None else known


def find_rows(store: Path) -> StateRows | None:
    """Read the rows of a folder; None where they are missing or damaged."""
    try:
        os.utime(store)  # first: what was used just now is not what another build drops
        return _open(store)
    except _UNREADABLE:
        return None


def size_of_store(store: Path) -> int:
    """Return most of the bytes that a store takes; raise FileNotFoundError where there is none."""
    return (store / _HIDDEN).stat().st_size


def _make(store: Path, encode: Callable[[], Iterator[EncodedRow]]) -> StateRows:
    """Usable also where somebody clears the cache meanwhile: an open file stays until it is closed."""
    unfinished = store.with_name(f".{store.name}.{os.getpid()}.{time.monotonic_ns()}")
    with disk_full_is_an_error(store):
        unfinished.mkdir(parents=True)
        try:
            rows = _write(unfinished / _HIDDEN, encode())
            with suppress(FileNotFoundError):
                _write_places(unfinished, rows)
                fsync_folder(unfinished)
                _publish(unfinished, store)
            return rows
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _publish(unfinished: Path, store: Path) -> None:
    if find_rows(store) is not None:  # somebody else was faster
        return
    remove_folder(store)
    try:
        unfinished.rename(store)
    except OSError:
        if find_rows(store) is None:  # somebody else was faster after all
            raise


def _write(path: Path, encoded: Iterator[EncodedRow]) -> StateRows:
    lengths: list[int] = []
    ends_of_first: list[int] = []
    tables: list[npt.NDArray[np.int32]] = []
    with path.open("w+b") as file:
        for hidden, words, middle in encoded:
            file.write(np.ascontiguousarray(hidden).data)
            lengths.append(len(hidden))
            ends_of_first.append(len(hidden) if middle is None else middle)
            if words is not None:
                tables.append(np.stack([words.first_tokens, words.starts, words.ends], axis=1))
        file.flush()
        mapped = np.memmap(file, np.float16, "r").reshape(-1, hidden.shape[1])
    row_offsets, ends = _offsets(lengths), np.array(ends_of_first, np.int64)
    if not tables:
        return StateRows(mapped, row_offsets, ends)
    return StateRows(mapped, row_offsets, ends, np.concatenate(tables), _offsets([len(table) for table in tables]))


def _write_places(folder: Path, rows: StateRows) -> None:
    np.save(folder / "row_offsets.npy", rows.row_offsets)
    np.save(folder / "ends_of_first.npy", rows.ends_of_first)
    if rows.word_table is not None and rows.word_offsets is not None:
        np.save(folder / "word_table.npy", rows.word_table)
        np.save(folder / "word_offsets.npy", rows.word_offsets)
    hidden, has_words = rows.hidden, rows.word_table is not None
    manifest = {"size_bytes": hidden.nbytes, "hidden_size": hidden.shape[1], "words": has_words}
    write_json(folder / "manifest.json", manifest)


def _offsets(lengths: list[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def _open(store: Path) -> StateRows:
    """Raises one of `_UNREADABLE` where any of the files is missing or cut short."""
    manifest = read_json(store / "manifest.json")
    check_file(store / _HIDDEN, manifest["size_bytes"])
    hidden = np.memmap(store / _HIDDEN, np.float16, "r").reshape(-1, manifest["hidden_size"])
    names = ["row_offsets", "ends_of_first", *(["word_table", "word_offsets"] if manifest["words"] else [])]
    return StateRows(hidden, *(np.load(store / f"{name}.npy") for name in names))
