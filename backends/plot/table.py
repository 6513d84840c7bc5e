"""A published table, opened for reading.

Usage:
    with Table.open(folder, root_fingerprint) as table:
        rows, found = table.find(Store.TRI, keys)
        vectors = table.vectors(Store.TRI, rows[found])
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from backends.errors import FingerprintMismatchError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.plot.arrays import Float16Array, Found, Keys, Rows
from backends.plot.blocks import CheckedFile
from backends.plot.header import BlockedFile, Store, StoreHeader, TableHeader, TableSpec
from backends.plot.index import KeyIndex


class StoreReader:
    """One store's memory maps."""

    def __init__(self, folder: Path, store: Store, header: StoreHeader) -> None:
        self.store = store
        self.entries = header.entries
        self._file = CheckedFile(folder, header.values)
        self._values: Float16Array = self._file.array(np.float16)
        self._index = KeyIndex(CheckedFile(folder, header.index), header.index_seed) if header.index else None

    def find(self, keys: Keys) -> tuple[Rows, Found]:
        """The row of every key and whether it has one; a row means something only where it was found.

        Semantics: the uni-gram store is complete, so its keys are token ids and its rows too.
        Shape: [K] -> [K], [K]
        """
        if self._index is None:
            return keys.astype(np.int64), keys < np.uint64(self.entries)
        return self._index.find(keys)

    def read_into(self, rows: Rows, out: Float16Array) -> None:
        """Copy the rows' vectors, one after another.

        Shape: [K] -> [K, vectors * hidden]
        """
        self._file.check(rows)
        self._values.take(rows, axis=0, out=out, mode="clip")


class Table:
    """One domain version's stores. Closing drops the maps; a store that is still referenced keeps its map alive."""

    def __init__(self, folder: Path, header: TableHeader) -> None:
        self.folder = folder
        self.header = header
        self._stores = {store: StoreReader(folder, store, part) for store, part in header.stores.items()}
        self._closed = False

    @classmethod
    def open(cls, folder: Path, root_fingerprint: str) -> Self:
        """Open without reading more than headers and block checksums; entries are checked when they are touched."""
        header = TableHeader.read(folder)
        if header.spec.root_fingerprint != root_fingerprint:
            raise FingerprintMismatchError(
                f"table {folder} was made for the root with fingerprint {header.spec.root_fingerprint}; "
                f"it is used with {root_fingerprint}"
            )
        return cls(folder, header)

    @property
    def spec(self) -> TableSpec:
        return self.header.spec

    @property
    def name(self) -> str:
        return self.header.spec.name

    def __contains__(self, store: object) -> bool:
        return store in self.header.stores

    def store(self, store: Store) -> StoreReader:
        if self._closed:
            raise UnavailableError(f"table {self.name} is closed")
        if store not in self._stores:
            raise NotFoundError(f"table {self.name} has no {store.value} store")
        return self._stores[store]

    def find(self, store: Store, keys: Keys) -> tuple[Rows, Found]:
        """Rows of keys, and which keys have one; see `StoreReader.find`."""
        return self.store(store).find(keys)

    def vectors(self, store: Store, rows: Rows) -> Float16Array:
        """Copies of the stored vectors.

        Shape: [K] -> [K, vectors, hidden]
        """
        reader = self.store(store)
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < reader.entries:
            raise InvalidArgumentError(f"a row is outside the {reader.entries} rows of {store.value} in {self.name}")
        out = np.empty((rows.size, store.vectors * self.spec.hidden_size), np.float16)
        reader.read_into(rows, out)
        return out.reshape(rows.size, store.vectors, self.spec.hidden_size)

    def keys(self, store: Store) -> Keys:
        """The store's keys in the order of their rows, checked and copied into memory."""
        layout = self._keys_layout(store)
        file = CheckedFile(self.folder, layout)
        file.check_all()
        copied: Keys = file.array(store.key_dtype).reshape(-1).copy()
        return copied

    def verify(self) -> None:
        """Read everything once and compare it with its checksums."""
        for header in self.header.stores.values():
            for layout in header.files:
                CheckedFile(self.folder, layout).check_all()

    def close(self) -> None:
        self._closed = True
        self._stores = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keys_layout(self, store: Store) -> BlockedFile:
        header = self.header.stores.get(store)
        if header is None or header.keys is None:
            raise NotFoundError(f"table {self.name} has no keys of a {store.value} store")
        return header.keys
