"""The header file of a table, and the layout that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from backends.errors import CorruptFileError, InvalidArgumentError, shown
from backends.fields import Fields, read_fields
from backends.plot.arrays import Ids, Keys
from backends.plot.keys import (
    CENTRED_TRIGRAM,
    WIDE_KEY,
    FragmentShape,
    id_limit,
    left_bigram,
    right_bigram,
    trigram,
    unigram,
    unpack,
)
from backends.storage import write_json

FORMAT_VERSION = 1
HEADER_NAME = "header.json"
VALUE_DTYPE = "float16"
_VALUE_BYTES = 2
SLOT_BYTES = 16
"""A slot of an index: a key and its row."""
_WIDEST, _MOST_ENTRIES = 1 << 16, 1 << 40


class Store(StrEnum):
    """The kinds of fragments that a table keeps apart; a shorter one leaves slots empty, and those are not stored."""

    PENTA = "penta"
    TRI = "tri"
    LEFT_BI = "left_bi"
    BI = "bi"
    UNI = "uni"

    @property
    def shape(self) -> FragmentShape:
        """The slots that an entry fills, counted from the token itself."""
        return _SHAPES[self]

    @property
    def vectors(self) -> int:
        return self.shape.n

    @property
    def key_dtype(self) -> np.dtype[Any]:
        return WIDE_KEY if self is Store.PENTA else np.dtype(np.uint64)

    def slots(self, n: int) -> slice:
        """Return the slots among a fragment's `n` that an entry's vectors fill; the others are zero."""
        centre = n // 2
        return slice(centre - self.shape.before, centre + self.shape.after + 1)

    def shorten(self, keys: Keys) -> Keys:
        """Shorten the keys of whole fragments to the keys of this store."""
        match self:
            case Store.PENTA:
                return keys
            case Store.TRI:
                return trigram(keys)
            case Store.LEFT_BI:
                return left_bigram(keys)
            case Store.BI:
                return right_bigram(keys)
            case Store.UNI:
                return unigram(keys).view(np.uint64)

    def ids(self, keys: Keys) -> Ids:
        """The ids that an entry's vectors stand for; a uni-gram's key is its id.

        Shape: [K] -> [K, vectors]
        """
        if self is Store.UNI:
            return keys.astype(np.int64)[:, None]
        unpacked = unpack(keys)
        return unpacked[:, self.slots(unpacked.shape[1])]


_SHAPES = {
    Store.PENTA: FragmentShape(2, 2),
    Store.TRI: FragmentShape(1, 1),
    Store.LEFT_BI: FragmentShape(1, 0),
    Store.BI: FragmentShape(0, 1),
    Store.UNI: FragmentShape(0, 0),
}
_STORES = {
    2: (Store.LEFT_BI, Store.UNI),
    3: (Store.TRI, Store.BI, Store.UNI),
    5: (Store.PENTA, Store.TRI, Store.BI, Store.UNI),
}


def stores_of(n: int) -> tuple[Store, ...]:
    """The stores of a table of `n`-grams in the order in which they are asked; the first holds whole fragments."""
    if n not in _STORES:
        raise InvalidArgumentError(f"tables are made of 2-, 3- or 5-grams, not of {n}-grams")
    return _STORES[n]


@dataclass(frozen=True)
class TableSpec:
    """The properties of a table that a builder fixes before the first entry."""

    name: str
    root_fingerprint: str
    hidden_size: int
    vocab_size: int
    parent: str | None = None
    n: int = CENTRED_TRIGRAM.n

    def __post_init__(self) -> None:
        if not self.name or not self.root_fingerprint:
            raise InvalidArgumentError("a table needs a name and its root's fingerprint")
        if self.hidden_size < 1 or self.vocab_size < 1:
            raise InvalidArgumentError(f"table {self.name}: hidden size and vocabulary size must be positive")
        stores_of(self.n)
        if self.vocab_size > id_limit(self.n):
            raise InvalidArgumentError(
                f"table {self.name}: {self.n}-grams have room for {id_limit(self.n)} token ids, not {self.vocab_size}"
            )

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores in the order of lookup."""
        return stores_of(self.n)

    @property
    def main(self) -> Store:
        """The store of whole fragments."""
        return self.stores[0]

    @property
    def shape(self) -> FragmentShape:
        return self.main.shape

    def entry_bytes(self, store: Store) -> int:
        return store.vectors * self.hidden_size * _VALUE_BYTES


@dataclass(frozen=True)
class BlockedFile:
    """A file of equal entries; every `block_entries` of them have one checksum in the file beside it."""

    name: str
    entries: int
    entry_bytes: int
    block_entries: int
    sums_checksum: str

    @property
    def size_bytes(self) -> int:
        return self.entries * self.entry_bytes

    @property
    def blocks(self) -> int:
        return -(-self.entries // self.block_entries)

    @property
    def block_bytes(self) -> int:
        return self.block_entries * self.entry_bytes


@dataclass(frozen=True)
class StoreHeader:
    """One store's files; the uni-gram store is complete (row = token id), so it has neither keys nor index."""

    values: BlockedFile
    keys: BlockedFile | None = None
    index: BlockedFile | None = None
    index_seed: int = 0

    @property
    def entries(self) -> int:
        return self.values.entries

    @property
    def files(self) -> tuple[BlockedFile, ...]:
        return tuple(file for file in (self.index, self.keys, self.values) if file is not None)


@dataclass(frozen=True)
class TableHeader:
    spec: TableSpec
    stores: Mapping[Store, StoreHeader]
    origin: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        content = {
            **asdict(self.spec),
            "format_version": FORMAT_VERSION,
            "dtype": VALUE_DTYPE,
            "stores": {store.value: asdict(header) for store, header in self.stores.items()},
            "origin": dict(self.origin),
        }
        write_json(folder / HEADER_NAME, content)

    @classmethod
    def read(cls, folder: Path) -> TableHeader:
        path = folder / HEADER_NAME
        fields = read_fields(path, FORMAT_VERSION)
        fields.text("dtype", (VALUE_DTYPE,))
        has_parent = fields.get("parent") is not None
        try:
            spec = TableSpec(
                name=fields.text("name"),
                root_fingerprint=fields.text("root_fingerprint"),
                hidden_size=fields.whole("hidden_size", 1, _WIDEST),
                vocab_size=fields.whole("vocab_size", 1),
                parent=fields.text("parent") if has_parent else None,
                n=fields.whole("n") if "n" in fields else CENTRED_TRIGRAM.n,
            )
        except InvalidArgumentError as error:
            raise CorruptFileError(f"{path}: {error}") from error
        stores = fields.part("stores")
        unknown = [name for name in stores.names() if name not in {store.value for store in spec.stores}]
        if unknown:
            raise CorruptFileError(f"{path}: a table of {spec.n}-grams has no store {shown(unknown[0])}")
        headers = {Store(name): _store_header(spec, Store(name), stores.part(name)) for name in stores.names()}
        return cls(spec, headers, fields.mapping("origin"))


def _store_header(spec: TableSpec, store: Store, stored: Fields) -> StoreHeader:
    """Read a store's files; the sizes of their entries follow from the table's."""
    is_indexed = store is not Store.UNI
    values = _blocked_file(stored.part("values"), spec.entry_bytes(store))
    keys = _blocked_file(stored.part("keys"), store.key_dtype.itemsize) if is_indexed else None
    index = _blocked_file(stored.part("index"), SLOT_BYTES) if is_indexed else None
    if keys is not None and keys.entries != values.entries:
        raise CorruptFileError(f"{stored.where} has {keys.entries} keys of {values.entries} entries")
    if store is Store.UNI and values.entries < spec.vocab_size:
        raise CorruptFileError(f"{stored.where} has {values.entries} entries, fewer than the vocabulary")
    return StoreHeader(values, keys, index, stored.whole("index_seed"))


def _blocked_file(stored: Fields, entry_bytes: int) -> BlockedFile:
    name = stored.text("name")
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise CorruptFileError(f"{stored.where}: {shown(name)} is no name of a file beside it")
    block_entries = stored.whole("block_entries", 1)
    if block_entries & (block_entries - 1):
        raise CorruptFileError(f"{stored.where}: a block has {block_entries} entries, not a power of two")
    return BlockedFile(
        name,
        stored.whole("entries", 1, _MOST_ENTRIES),
        stored.whole("entry_bytes", entry_bytes, entry_bytes),
        block_entries,
        stored.text("sums_checksum"),
    )
