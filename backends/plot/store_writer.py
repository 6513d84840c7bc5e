"""The growing files of one store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Float16Array, Keys
from backends.plot.blocks import BlockedFileWriter, file_bytes
from backends.plot.header import SLOT_BYTES, BlockedFile, Store, StoreHeader, TableSpec
from backends.plot.index import build_index, least_slots
from backends.plot.key_set import KeySet
from backends.plot.keys import ID_LIMIT, MAX_IDS_PER_WORD, PAD_ID, WIDE_ID_LIMIT, WIDE_KEY, trigram, unigram

KEY_BLOCK_BYTES = 4 << 10
VALUE_BLOCK_BYTES = 32 << 10


def expected_bytes(spec: TableSpec, store: Store, entries: int) -> int:
    """Compute the bytes that a store of `entries` takes on disk."""
    files = [(entries, spec.entry_bytes(store), VALUE_BLOCK_BYTES)]
    if store is not Store.UNI:
        key_bytes = store.key_dtype.itemsize
        files += [(entries, key_bytes, KEY_BLOCK_BYTES), (least_slots(entries), SLOT_BYTES, KEY_BLOCK_BYTES)]
    return sum(file_bytes(*file) for file in files)


class KeyWriter:
    """The keys of a store in the order of their rows, and in the end the index over them."""

    def __init__(self, folder: Path, store: Store, entries: int) -> None:
        self._store = store
        self._path = folder / f"{store.value}.keys"
        self._index_path = folder / f"{store.value}.index"
        self._file = BlockedFileWriter(self._path, store.key_dtype.itemsize, KEY_BLOCK_BYTES, entries)
        self._seen = KeySet(np.fromfile(self._path, store.key_dtype))

    def add(self, keys: Keys) -> None:
        """Reject keys that are malformed or there already; `write` follows when the values are in their file."""
        if keys.size and not self._well_formed(keys):
            raise InvalidArgumentError(f"a key of the {self._store.value} store has too many ids or no centre")
        self._seen.add(keys)

    def _well_formed(self, keys: Keys) -> bool:
        fits = int(trigram(keys).max()) < ID_LIMIT**MAX_IDS_PER_WORD
        if keys.dtype == WIDE_KEY:
            fits &= int(keys["outer"].max()) < WIDE_ID_LIMIT**2
        return fits and int(unigram(keys).min()) > PAD_ID and np.array_equal(self._store.shorten(keys), keys)

    def write(self, keys: Keys) -> None:
        self._file.append(keys)

    def sync(self) -> None:
        self._file.sync()

    def finish(self) -> tuple[BlockedFile, BlockedFile, int]:
        """The descriptions of the key file and of the index, and the index's seed."""
        layout = self._file.finish()
        probe, chunks = build_index(np.memmap(self._path, self._store.key_dtype, mode="r").view(np.ndarray))
        index = BlockedFileWriter(self._index_path, SLOT_BYTES, KEY_BLOCK_BYTES)
        try:
            for chunk in chunks:
                index.append(chunk)
            return layout, index.finish(), probe.seed
        finally:
            index.close()

    def close(self) -> None:
        self._file.close()


class StoreWriter:
    """Values and, unless the rows are token ids, their keys."""

    def __init__(self, folder: Path, store: Store, spec: TableSpec, entries: int) -> None:
        self._folder = folder
        self._store = store
        self._spec = spec
        path = folder / f"{store.value}.values"
        self._values = BlockedFileWriter(path, spec.entry_bytes(store), VALUE_BLOCK_BYTES, entries)
        self._keys = None if store is Store.UNI else KeyWriter(folder, store, entries)

    @property
    def entries(self) -> int:
        return self._values.entries

    def append(self, keys: Keys, values: Float16Array) -> None:
        self._check_values(keys, values)
        if self._keys is None:
            self._check_token_ids(keys)
            self._values.append(values)
        else:
            self._keys.add(keys)
            self._values.append(values)
            self._keys.write(keys)

    def sync(self) -> None:
        self._values.sync()
        if self._keys is not None:
            self._keys.sync()

    def finish(self) -> StoreHeader | None:
        """Describe the finished files, or remove them where nothing was appended."""
        if not self.entries:
            self.close()
            for path in self._folder.glob(f"{self._store.value}.*"):
                path.unlink()
            return None
        values = self._values.finish()
        if self._keys is None:
            return StoreHeader(values)
        return StoreHeader(values, *self._keys.finish())

    def close(self) -> None:
        self._values.close()
        if self._keys is not None:
            self._keys.close()

    def _check_values(self, keys: Keys, values: Float16Array) -> None:
        expected = (keys.size, self._store.vectors, self._spec.hidden_size)
        if keys.dtype != self._store.key_dtype or keys.ndim != 1:
            raise InvalidArgumentError(
                f"keys of the {self._store.value} store are a flat array of {self._store.key_dtype}, "
                f"not {keys.dtype} {keys.shape}"
            )
        if values.dtype != np.float16 or values.shape != expected:
            raise InvalidArgumentError(
                f"values of the {self._store.value} store are float16 {expected}, not {values.dtype} {values.shape}"
            )
        if not np.isfinite(values).all():
            raise InvalidArgumentError(f"values of the {self._store.value} store are not finite; the layers diverged")

    def _check_token_ids(self, keys: Keys) -> None:
        if not np.array_equal(keys, np.arange(self.entries, self.entries + keys.size, dtype=np.uint64)):
            raise InvalidArgumentError(f"uni-grams come in the order of their token ids; the next is {self.entries}")
        if self.entries + keys.size > self._spec.vocab_size:
            raise InvalidArgumentError(f"there are only {self._spec.vocab_size} uni-grams")
