"""Texts after the lower half, kept on disk: whoever tunes on the same texts again pays for the upper half only.

A store can be deleted at any time; it is made again when it is needed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from backends.errors import CorruptFileError
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.root.tokenizer import Text
from backends.root.words import RowWords
from backends.storage import (
    check_file,
    disk_full_is_an_error,
    file_checksum,
    fsync_folder,
    json_checksum,
    read_json,
    write_json,
)
from builder.construct.computed_fragments import ComputedFragments, exact_half
from builder.progress import Report, Step

EncodedRow = tuple[npt.NDArray[np.float16], RowWords | None, int | None]
"""One text's hidden rows `[L, H]`, its words where they were asked for, and a pair's first token of the second half."""
MAX_STORED_BYTES = 20 << 30
_FORMAT_VERSION = 5
_TEXTS_PER_BATCH = 256
_UNFINISHED_KEPT_S = 24 * 3600
_ATTEMPTS = 3
_UNREADABLE = (CorruptFileError, OSError, ValueError, EOFError)


@dataclass(frozen=True)
class StateRows(Sequence[Tensor]):
    """Hidden rows, mapped into memory: they cost RAM only while they are used.

    Shape:
        hidden: `[T, H]` fp16; row_offsets: `[R + 1]`; ends_of_first: `[R]`, of a single text its length; where words
        were asked for, word_table: `[ΣW, 3]` with the fields
        of `RowWords`; word_offsets: `[R + 1]`.
    """

    hidden: npt.NDArray[np.float16]
    row_offsets: npt.NDArray[np.int64]
    ends_of_first: npt.NDArray[np.int64]
    word_table: npt.NDArray[np.int32] | None = None
    word_offsets: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.row_offsets) - 1

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        start, end = self.row_offsets[index : index + 2]
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


class StateCache:
    """The stores of one domain version; `rows` reads one or makes it."""

    def __init__(self, home: Home, domain: DomainEntry) -> None:
        self._home = home
        self._domain = domain

    def rows(self, texts: Sequence[Text], with_words: bool, what: str, report: Report) -> StateRows:
        """`what` names the texts in the progress."""
        store = self._home.states / self._key(texts, with_words)

        def done(count: int) -> None:
            report(Step(f"look up the {what} texts", count, len(texts)))

        rows = stored_rows(store, lambda: self._encoded(texts, with_words, done))
        _remove_oldest(self._home.states, keep=store)
        return rows

    def _key(self, texts: Sequence[Text], with_words: bool) -> str:
        digest = xxhash.xxh3_128()
        for text in texts:
            digest.update(repr(text).encode("utf-8", "surrogatepass"))
        headers = [file_checksum(self._home.path / folder / "header.json") for folder in self._domain.folders]
        return json_checksum(
            {
                "format": _FORMAT_VERSION,
                "tables": headers,
                "layers": ComputedFragments(self._home, self._domain).identity,
                "texts": digest.hexdigest(),
                "words": with_words,
            }
        )

    def _encoded(self, texts: Sequence[Text], with_words: bool, done: Callable[[int], None]) -> Iterator[EncodedRow]:
        half = exact_half(self._home, self._domain)
        for start in range(0, len(texts), _TEXTS_PER_BATCH):
            batch = texts[start : start + _TEXTS_PER_BATCH]
            encoded = half.encode(batch, [with_words] * len(batch))
            yield from zip(encoded.rows, encoded.words, encoded.middles, strict=True)
            done(start + len(batch))


def stored_rows(store: Path, encode: Callable[[], Iterator[EncodedRow]]) -> StateRows:
    """What lies in the folder, or what `encode` gives, which then lies there."""
    for _ in range(_ATTEMPTS):
        try:
            os.utime(store)  # first: what was used just now is not what another build drops
            return _open(store)
        except _UNREADABLE:
            _make(store, encode)  # also where another build dropped it between two of these lines
    return _open(store)


def _make(store: Path, encode: Callable[[], Iterator[EncodedRow]]) -> None:
    unfinished = store.with_name(f".{store.name}.{os.getpid()}.{time.monotonic_ns()}")
    with disk_full_is_an_error(store):
        unfinished.mkdir(parents=True)
        try:
            _write(unfinished, encode())
            if _is_whole(store):  # somebody else was faster
                return
            fsync_folder(unfinished)
            _drop(store)
            try:
                unfinished.rename(store)
            except OSError:
                if not _is_whole(store):  # somebody else was faster after all
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _write(folder: Path, encoded: Iterator[EncodedRow]) -> None:
    lengths: list[int] = []
    ends_of_first: list[int] = []
    tables: list[npt.NDArray[np.int32]] = []
    with (folder / "hidden.f16").open("wb") as file:
        for hidden, words, middle in encoded:
            file.write(np.ascontiguousarray(hidden).data)
            lengths.append(len(hidden))
            ends_of_first.append(len(hidden) if middle is None else middle)
            if words is not None:
                tables.append(np.stack([words.first_tokens, words.starts, words.ends], axis=1))
        size_bytes = file.tell()
    np.save(folder / "row_offsets.npy", _offsets(lengths))
    np.save(folder / "ends_of_first.npy", np.array(ends_of_first, np.int64))
    if tables:
        np.save(folder / "word_table.npy", np.concatenate(tables))
        np.save(folder / "word_offsets.npy", _offsets([len(table) for table in tables]))
    write_json(
        folder / "manifest.json", {"size_bytes": size_bytes, "hidden_size": hidden.shape[1], "words": bool(tables)}
    )


def _offsets(lengths: list[int]) -> npt.NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _is_whole(store: Path) -> bool:
    try:
        _open(store)
    except _UNREADABLE:
        return False
    return True


def _drop(store: Path) -> None:
    """Under another name first: a kill in the middle must not leave a part that looks like a store."""
    dropped = store.with_name(f".{store.name}.{os.getpid()}.{time.monotonic_ns()}.dropped")
    try:
        store.rename(dropped)
    except FileNotFoundError:  # another process was faster
        return
    shutil.rmtree(dropped, ignore_errors=True)


def _open(store: Path) -> StateRows:
    """Raises one of `_UNREADABLE` where any of the files is missing or cut short."""
    manifest = read_json(store / "manifest.json")
    check_file(store / "hidden.f16", manifest["size_bytes"])
    hidden = np.memmap(store / "hidden.f16", np.float16, "r").reshape(-1, manifest["hidden_size"])
    names = ["row_offsets", "ends_of_first", *(["word_table", "word_offsets"] if manifest["words"] else [])]
    return StateRows(hidden, *(np.load(store / f"{name}.npy") for name in names))


def _remove_oldest(states: Path, keep: Path) -> None:
    """Drop what was used longest ago until the rest is within the limit, and what a killed build left behind."""
    for path in states.glob(".*"):
        if time.time() - _used_at(path) > _UNFINISHED_KEPT_S:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    stores = [path for path in states.iterdir() if not path.name.startswith(".")]
    total_bytes = sum(_size_bytes(path) for path in states.glob(".*"))
    for store in sorted(stores, key=_used_at, reverse=True):
        total_bytes += _size_bytes(store)
        if total_bytes > MAX_STORED_BYTES and store != keep:
            _drop(store)


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removed it
        return 0.0


def _size_bytes(path: Path) -> int:
    """Of a store, or of a file."""
    try:
        return (path / "hidden.f16" if path.is_dir() else path).stat().st_size
    except FileNotFoundError:
        return 0
