"""Building a table: entries are appended in batches, a killed build goes on where it was last durable.

Usage:
    with TableWriter(home / "plots/mini/medicine@2", spec) as writer:
        for keys, values in batches(skip=writer.count(Store.TRI)):
            writer.append(Store.TRI, keys, values)
        writer.finish({"tokens": 120_000_000})
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from backends.errors import ConflictError, CorruptFileError, InvalidArgumentError
from backends.plot.arrays import Float16Array, Keys
from backends.plot.header import Store, TableHeader, TableSpec
from backends.plot.store_writer import StoreWriter
from backends.storage import (
    HALF_WRITTEN,
    being_written,
    disk_full_is_an_error,
    publish_folder,
    read_json,
    staging_folder,
    write_json,
)

CHECKPOINT_BYTES = 256 << 20
_PROGRESS_NAME = "progress.json"


class TableWriter:
    """Appends to the staging folder of a table that is not published yet; one writer at a time."""

    def __init__(self, target: Path, spec: TableSpec) -> None:
        self.spec = spec
        self._target = target
        self._folder = staging_folder(target)
        self._bytes_since_checkpoint = 0
        if target.exists():
            raise ConflictError(f"table {target} is published already")
        with ExitStack() as opened:
            with disk_full_is_an_error(self._folder):
                opened.enter_context(being_written(target))
                self._folder.mkdir(parents=True, exist_ok=True)
            self._stores = self._open_stores()
            self._lock = opened.pop_all()

    def count(self, store: Store) -> int:
        """Entries that were appended so far, those of an earlier, killed build included."""
        return self._stores[store].entries

    def append(self, store: Store, keys: Keys, values: Float16Array) -> None:
        """Append gated states; hot fragments first, so that hot rows lie together.

        Semantics: values are masked (empty slots are zero) and hold only the store's own slots. A uni-gram's key is its
        token id, and uni-grams come in order from 0. On an error nothing of the batch counts.
        Shape: keys [K], values [K, vectors, hidden]
        """
        self._stores[store].append(keys, values)
        self._bytes_since_checkpoint += values.nbytes
        if self._bytes_since_checkpoint >= CHECKPOINT_BYTES:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Make durable what was appended; a killed build goes on from here."""
        for store in self._stores.values():
            store.sync()
        self._write_progress({store: writer.entries for store, writer in self._stores.items()})
        self._bytes_since_checkpoint = 0

    def finish(self, origin: Mapping[str, Any] | None = None) -> Path:
        """Build indexes, write the header last, and publish the folder in one step."""
        unigrams = self.count(Store.UNI)
        if unigrams not in (0, self.spec.vocab_size):
            raise InvalidArgumentError(
                f"table {self.spec.name} has {unigrams} uni-grams of {self.spec.vocab_size}; it needs all or none"
            )
        self.checkpoint()
        stores = {store: header for store, writer in self._stores.items() if (header := writer.finish()) is not None}
        TableHeader(self.spec, stores, origin or {}).write(self._folder)
        publish_folder(self._target)
        (self._target / _PROGRESS_NAME).unlink(missing_ok=True)
        return self._target

    def close(self) -> None:
        """Close the files and release the lock; an unfinished table stays in the staging folder for the next writer."""
        for store in self._stores.values():
            store.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_stores(self) -> dict[Store, StoreWriter]:
        for half_written in self._folder.glob(f"*{HALF_WRITTEN}"):  # by a build that was killed
            half_written.unlink()
        entries = self._read_progress()
        with disk_full_is_an_error(self._folder):
            return {store: StoreWriter(self._folder, store, self.spec, entries[store]) for store in self.spec.stores}

    def _read_progress(self) -> dict[Store, int]:
        path = self._folder / _PROGRESS_NAME
        if not path.exists():
            self._write_progress(dict.fromkeys(self.spec.stores, 0))
        progress = read_json(path)
        if progress.get("spec") != asdict(self.spec):
            raise ConflictError(f"{self._folder} holds the unfinished build of another table; delete it to start anew")
        try:
            return {store: int(progress["entries"][store.value]) for store in self.spec.stores}
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFileError(f"{path} does not say how many entries are durable") from error

    def _write_progress(self, entries: Mapping[Store, int]) -> None:
        counts = {store.value: count for store, count in entries.items()}
        write_json(self._folder / _PROGRESS_NAME, {"spec": asdict(self.spec), "entries": counts})
