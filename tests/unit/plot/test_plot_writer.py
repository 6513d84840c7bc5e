import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plot_build import BATCH, BATCHES, build
from plot_reference import FINGERPRINT, random_table

from backends.errors import ConflictError, CorruptFileError, InvalidArgumentError, StorageFullError
from backends.plot import Store, Table, TableSpec, TableWriter, pack
from backends.plot.arrays import Float16Array, Keys
from backends.storage import staging_folder

SPEC = TableSpec("general@1", FINGERPRINT, 16, 40)


def entries(rng: np.random.Generator, start: int, count: int) -> tuple[Keys, Float16Array]:
    keys = np.arange(start, start + count, dtype=np.uint64) + np.uint64(1 << 21)
    return keys, rng.standard_normal((count, 3, 16)).astype(np.float16)


def kill_after(target: Path, word: str, times: int) -> None:
    """Run the builder and kill it when it has said the word so many times."""
    command = [sys.executable, str(Path(__file__).with_name("plot_build.py")), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for said in process.stdout:
            times -= said.strip() == word
            if not times:
                process.kill()
    assert times <= 0


def test_a_killed_build_goes_on_and_ends_up_the_same(tmp_path: Path) -> None:
    target, whole = tmp_path / "plots" / "general@1", tmp_path / "whole"
    kill_after(target, "appended", 11)
    assert not target.exists()
    (staging_folder(target) / "progress.json.0123abcd.new").write_text("{")  # as of a kill amid a file
    with TableWriter(target, TableSpec("general@1", "f00d", 16, 500)) as writer:
        assert BATCH < writer.count(Store.TRI) < BATCH * BATCHES
    kill_after(target, "finishing", 1)
    if not target.exists():
        build(target)
    build(whole)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    Table.open(target, "f00d").verify()


def test_a_torn_tail_is_cut_off(tmp_path: Path, rng: np.random.Generator) -> None:
    target = tmp_path / "general@1"
    keys, values = entries(rng, 0, 1000)
    with TableWriter(target, SPEC) as writer:
        writer.append(Store.TRI, keys[:301], values[:301])
        writer.checkpoint()
        writer.append(Store.TRI, keys[301:500], values[301:500])
    for name in ("tri.values", "tri.values.sums", "tri.keys"):
        with (staging_folder(target) / name).open("ab") as file:
            file.write(b"torn!")
    with TableWriter(target, SPEC) as writer:
        assert writer.count(Store.TRI) == 301
        writer.append(Store.TRI, keys[301:], values[301:])
        writer.finish()
    with Table.open(target, FINGERPRINT) as table:
        table.verify()
        rows, found = table.find(Store.TRI, keys)
        assert found.all()
        assert np.array_equal(table.vectors(Store.TRI, rows), values)


def test_durable_entries_that_went_missing_are_noticed(tmp_path: Path, rng: np.random.Generator) -> None:
    target = tmp_path / "general@1"
    with TableWriter(target, SPEC) as writer:
        writer.append(Store.TRI, *entries(rng, 0, 100))
        writer.checkpoint()
    with (staging_folder(target) / "tri.keys").open("r+b") as file:
        file.truncate(90)
    with pytest.raises(CorruptFileError, match=r"tri\.keys is shorter"):
        TableWriter(target, SPEC)


def test_duplicates_are_refused_and_the_batch_does_not_count(tmp_path: Path, rng: np.random.Generator) -> None:
    target = tmp_path / "general@1"
    with TableWriter(target, SPEC) as writer:
        for start in range(0, 3000, 100):
            writer.append(Store.TRI, *entries(rng, start, 100))
        keys, values = entries(rng, 5000, 50)
        for old in (0, 1234, 2999):
            twice = keys.copy()
            twice[20] = entries(rng, old, 1)[0][0]
            with pytest.raises(InvalidArgumentError, match="already"):
                writer.append(Store.TRI, twice, values)
        with pytest.raises(InvalidArgumentError, match="twice"):
            writer.append(Store.TRI, np.repeat(keys, 2), np.repeat(values, 2, axis=0))
        assert writer.count(Store.TRI) == 3000
        writer.append(Store.TRI, keys, values)
        writer.checkpoint()
    with TableWriter(target, SPEC) as writer, pytest.raises(InvalidArgumentError, match="already"):
        writer.append(Store.TRI, keys[:1], values[:1])


def test_malformed_batches_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    keys, values = entries(rng, 0, 10)
    trigram, no_centre = np.array([1 << 50 | 1 << 21], np.uint64), np.array([5], np.uint64)
    wrong: list[tuple[Store, Any, Any]] = [
        (Store.TRI, keys, values.astype(np.float32)),
        (Store.TRI, keys.astype(np.int64), values),
        (Store.TRI, keys[:9], values),
        (Store.TRI, keys, values[:, :2]),
        (Store.TRI, keys, values[:, :, :15]),
        (Store.TRI, no_centre, values[:1]),
        (Store.TRI, np.array([1 << 63 | 1 << 21], np.uint64), values[:1]),
        (Store.BI, trigram, values[:1, :2]),
        (Store.UNI, np.arange(1, 11, dtype=np.uint64), values[:, :1]),
        (Store.UNI, np.arange(41, dtype=np.uint64), np.zeros((41, 1, 16), np.float16)),
    ]
    with TableWriter(tmp_path / "general@1", SPEC) as writer:
        for store, some_keys, some_values in wrong:
            with pytest.raises(InvalidArgumentError):
                writer.append(store, some_keys, some_values)
            assert writer.count(store) == 0


def test_malformed_keys_of_other_fragments_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    too_far, no_centre, good = pack(np.array([[1, 2, 3, 4, 5], [1, 2, 0, 4, 5], [6, 7, 8, 9, 1]]))[:, None]
    too_far["outer"] |= np.uint64(1 << 40)
    values = rng.standard_normal((1, 5, 16)).astype(np.float16)
    with TableWriter(tmp_path / "general@1", replace(SPEC, n=5)) as writer:
        for wrong in (too_far, no_centre, good["inner"]):
            with pytest.raises(InvalidArgumentError):
                writer.append(Store.PENTA, wrong, values)
        writer.append(Store.PENTA, good, values)
        with pytest.raises(InvalidArgumentError, match=r"\[6, 7, 8, 9, 1\] is in the table already"):
            writer.append(Store.PENTA, good, values)
        assert writer.count(Store.PENTA) == 1
    with TableWriter(tmp_path / "general@2", replace(SPEC, n=2)) as writer:
        with pytest.raises(InvalidArgumentError):
            writer.append(Store.LEFT_BI, pack(np.array([[3, 4, 5]])), values[:, :2])
        writer.append(Store.LEFT_BI, pack(np.array([[3, 4, 0]])), values[:, :2])


def test_an_incomplete_unigram_store_is_refused(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "general@1", SPEC) as writer:
        writer.append(Store.UNI, np.arange(39, dtype=np.uint64), np.zeros((39, 1, 16), np.float16))
        with pytest.raises(InvalidArgumentError, match="39 uni-grams of 40"):
            writer.finish()


def test_one_writer_at_a_time_and_one_build_per_folder(tmp_path: Path) -> None:
    target = tmp_path / "general@1"
    with TableWriter(target, SPEC), pytest.raises(ConflictError, match="another process"):
        TableWriter(target, SPEC)
    with pytest.raises(ConflictError, match="unfinished build of another table"):
        TableWriter(target, TableSpec("general@1", "feedbeef", 16, 40))
    with TableWriter(target, SPEC) as writer:
        writer.finish()
    with pytest.raises(ConflictError, match="published already"):
        TableWriter(target, SPEC)


@pytest.mark.parametrize(
    "wrong",
    [{"hidden_size": 0}, {"vocab_size": 0}, {"n": 4}, {"n": 5, "vocab_size": 300_000}, {"root_fingerprint": ""}],
)
def test_impossible_tables_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        replace(SPEC, **wrong)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None or not mount(folder, "size=600k"):
        pytest.skip("mounting a small disk needs root")
    yield folder
    # Lazily: an error that pytest still holds may keep a mapped file of the disk open.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def mount(folder: Path, options: str) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode == 0


@pytest.mark.parametrize("count", [4900, 8000])
def test_a_full_disk_is_one_error_and_the_old_version_lives(
    small_disk: Path, rng: np.random.Generator, count: int
) -> None:
    """With 8000 entries the values do not fit; with 4900 only the index does not."""
    random_table(rng, "general@1", None, 50, complete=True).write(small_disk / "general@1").close()
    spec = TableSpec("general@2", FINGERPRINT, 16, 40)
    keys, values = entries(rng, 0, count)
    with pytest.raises(StorageFullError, match="no space left"), TableWriter(small_disk / "general@2", spec) as writer:
        writer.append(Store.TRI, keys[:100], values[:100])
        writer.checkpoint()
        writer.append(Store.TRI, keys[100:], values[100:])
        writer.finish()
    assert not (small_disk / "general@2").exists()
    Table.open(small_disk / "general@1", FINGERPRINT).verify()
    assert mount(small_disk, "remount,size=4m")
    with TableWriter(small_disk / "general@2", spec) as writer:
        done = writer.count(Store.TRI)
        assert done >= 100
        writer.append(Store.TRI, keys[done:], values[done:])
        writer.finish()
    with Table.open(small_disk / "general@2", FINGERPRINT) as table:
        table.verify()
        assert np.array_equal(table.vectors(Store.TRI, table.find(Store.TRI, keys)[0]), values)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_refused(tmp_path: Path, rng: np.random.Generator, value: float) -> None:
    keys, values = entries(rng, 0, 20)
    values[7, 1, 3] = value
    with TableWriter(tmp_path / "general@1", SPEC) as writer, pytest.raises(InvalidArgumentError, match="not finite"):
        writer.append(Store.TRI, keys, values)
