import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from plot_reference import FINGERPRINT, ReferenceTable, random_table, store_keys

from backends.errors import (
    CorruptFileError,
    FingerprintMismatchError,
    FormatVersionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
)
from backends.plot import Store, Table
from backends.storage import read_json, write_json


@pytest.fixture
def reference(rng: np.random.Generator) -> ReferenceTable:
    return random_table(rng, "general@1", None, 3000, 200, vocab_size=60, hidden_size=96, complete=True)


@pytest.fixture
def folder(tmp_path: Path, reference: ReferenceTable) -> Path:
    target = tmp_path / "general@1"
    reference.write(target).close()
    return target


def read_everything(folder: Path, reference: ReferenceTable) -> None:
    with Table.open(folder, FINGERPRINT) as table:
        for store, entries in reference.stores.items():
            rows, found = table.find(store, store_keys(store, list(entries)))
            assert found.all()
            assert np.array_equal(table.vectors(store, rows), np.stack(list(entries.values())))


def flip_a_bit(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << (position % 8)
    path.write_bytes(content)


def test_every_entry_comes_back(folder: Path, reference: ReferenceTable) -> None:
    read_everything(folder, reference)
    with Table.open(folder, FINGERPRINT) as table:
        table.verify()
        assert np.array_equal(table.keys(Store.TRI), store_keys(Store.TRI, list(reference.stores[Store.TRI])))
        assert table.header.origin == {"made for": "tests"}
        assert table.spec == reference.spec
        assert not table.find(Store.TRI, np.array([1 << 62], np.uint64))[1].any()
        assert table.find(Store.UNI, np.array([59, 60], np.uint64))[1].tolist() == [True, False]


def test_what_is_not_there_is_named(tmp_path: Path, rng: np.random.Generator) -> None:
    table = random_table(rng, "medicine@1", "general@1", 5).write(tmp_path / "medicine@1")
    assert Store.TRI in table
    assert Store.UNI not in table
    with pytest.raises(NotFoundError, match="medicine@1 has no uni store"):
        table.find(Store.UNI, np.array([1], np.uint64))
    with pytest.raises(NotFoundError):
        table.keys(Store.BI)
    for row in (-1, 5):
        with pytest.raises(InvalidArgumentError):
            table.vectors(Store.TRI, np.array([row]))
    assert not {path.name.split(".")[0] for path in table.folder.iterdir()} & {"bi", "uni", "progress"}


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


def test_closing_drops_the_memory_maps_when_the_last_lookup_is_over(folder: Path) -> None:
    table = Table.open(folder, FINGERPRINT)
    reader = table.store(Store.TRI)
    assert str(folder) in mapped_files()
    table.close()
    assert f"{folder}/tri.values" in mapped_files()
    assert f"{folder}/uni.values" not in mapped_files()
    del reader
    assert str(folder) not in mapped_files()
    with pytest.raises(UnavailableError):
        table.find(Store.TRI, np.array([1], np.uint64))


def test_a_foreign_fingerprint_is_refused(folder: Path) -> None:
    with pytest.raises(FingerprintMismatchError, match=f"{FINGERPRINT}.*feedbeef"):
        Table.open(folder, "feedbeef")


def test_a_newer_format_is_refused(folder: Path) -> None:
    write_json(folder / "header.json", {**read_json(folder / "header.json"), "format_version": 2})
    with pytest.raises(FormatVersionError, match="version 2"):
        Table.open(folder, FINGERPRINT)


@pytest.mark.parametrize("field", ["format_version", "dtype", "stores", "vocab_size"])
def test_a_header_without_a_field_is_refused(folder: Path, field: str) -> None:
    header = read_json(folder / "header.json")
    del header[field]
    write_json(folder / "header.json", header)
    with pytest.raises(CorruptFileError, match=r"header\.json"):
        Table.open(folder, FINGERPRINT)


def test_a_truncated_or_missing_file_is_refused_at_open(folder: Path) -> None:
    # Key files are read only by verify and keys(), so only those look at them.
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        for damage in (lambda path=path, content=content: path.write_bytes(content[:-2]), path.unlink):
            damage()
            with pytest.raises(CorruptFileError, match=path.name):
                Table.open(folder, FINGERPRINT).verify()
            if ".keys" not in path.name:
                with pytest.raises(CorruptFileError, match=path.name):
                    Table.open(folder, FINGERPRINT)
            path.write_bytes(content)
    Table.open(folder, FINGERPRINT).verify()


def test_a_flipped_bit_anywhere_is_refused(folder: Path, reference: ReferenceTable, rng: np.random.Generator) -> None:
    for path in sorted(folder.iterdir()):
        for position in [0, path.stat().st_size - 1, *rng.integers(0, path.stat().st_size, 3).tolist()]:
            flip_a_bit(path, position)
            with pytest.raises(CorruptFileError, match=path.name):
                Table.open(folder, FINGERPRINT).verify()
            if ".index" in path.name:  # its last block may be so short that no key lies in it, and nobody reads it
                with suppress(CorruptFileError):
                    read_everything(folder, reference)
            elif ".keys" not in path.name:
                with pytest.raises(CorruptFileError, match=path.name):
                    read_everything(folder, reference)
            flip_a_bit(path, position)
    read_everything(folder, reference)


def test_a_bad_block_harms_only_lookups_that_touch_it(folder: Path, reference: ReferenceTable) -> None:
    row_bytes = reference.spec.entry_bytes(Store.TRI)
    flip_a_bit(folder / "tri.values", 1500 * row_bytes + 5)
    with Table.open(folder, FINGERPRINT) as table:
        expected = np.stack(list(reference.stores[Store.TRI].values())[:100])
        for _ in range(2):
            assert np.array_equal(table.vectors(Store.TRI, np.arange(100)), expected)
            with pytest.raises(CorruptFileError, match=r"tri\.values does not match its checksum in block \d+"):
                table.vectors(Store.TRI, np.array([3, 1500, 7]))


def test_opening_reads_no_entries(folder: Path) -> None:
    """Values and index may be damaged in place; opening does not look at them."""
    for name in ("tri.values", "tri.index", "uni.values"):
        size_bytes = (folder / name).stat().st_size
        (folder / name).write_bytes(os.urandom(size_bytes))
    Table.open(folder, FINGERPRINT).close()


@pytest.mark.parametrize("n", [2, 5])
def test_tables_of_other_fragments_come_back_too(tmp_path: Path, rng: np.random.Generator, n: int) -> None:
    reference = random_table(rng, "general@1", None, 2000, 50, vocab_size=60, complete=True, n=n)
    main = reference.spec.main
    reference.write(tmp_path / "general@1").close()
    read_everything(tmp_path / "general@1", reference)
    with Table.open(tmp_path / "general@1", FINGERPRINT) as table:
        table.verify()
        fragments = list(reference.stores[main])
        assert np.array_equal(table.keys(main), store_keys(main, fragments))
        ids = np.array(fragments)[:, main.slots(n)]
        assert np.array_equal(main.ids(table.keys(main)), ids)
