from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from backends.errors import InvalidArgumentError
from backends.plot import index
from backends.plot.blocks import BlockedFileWriter, CheckedFile
from backends.plot.header import SLOT_BYTES
from backends.plot.index import KeyIndex, Probe, build_index
from backends.plot.keys import WIDE_ID_LIMIT, pack

Keys = npt.NDArray[np.uint64]
WideKeys = npt.NDArray[np.void]


def stored(path: Path, keys: Keys | WideKeys) -> KeyIndex:
    probe, chunks = build_index(keys)
    writer = BlockedFileWriter(path, SLOT_BYTES, 4096)
    for chunk in chunks:
        writer.append(chunk)
    return KeyIndex(CheckedFile(path.parent, writer.finish()), probe.seed)


def check(found_index: KeyIndex, keys: Keys, strangers: Keys) -> None:
    rows, found = found_index.find(keys)
    assert found.all()
    assert np.array_equal(rows, np.arange(keys.size))
    assert not found_index.find(np.setdiff1d(strangers, keys))[1].any()


def random_keys(rng: np.random.Generator, count: int) -> Keys:
    return rng.permutation(np.unique(rng.integers(0, 1 << 63, count, np.uint64)))


KEY_SETS: dict[str, Callable[[np.random.Generator], Keys]] = {
    "sequential": lambda rng: np.arange(1, 200_001, dtype=np.uint64),
    "equal low bits": lambda rng: np.arange(200_000, dtype=np.uint64) << np.uint64(40),
    "equal high bits": lambda rng: np.arange(200_000, dtype=np.uint64) | np.uint64(0x7FFF << 48),
    "every 2^21": lambda rng: np.arange(200_000, dtype=np.uint64) << np.uint64(21) | np.uint64(77),
    "random": lambda rng: random_keys(rng, 300_000),
}


@pytest.mark.parametrize("name", KEY_SETS)
def test_every_key_is_found_and_no_other(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(index, "_CHUNK", 1 << 16)
    keys = KEY_SETS[name](rng)
    strangers = np.concatenate([random_keys(rng, 100_000), keys + np.uint64(1), keys ^ np.uint64(1 << 62)])
    check(stored(tmp_path / "index", keys), keys, strangers)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 13, 40])
def test_small_indexes(tmp_path: Path, rng: np.random.Generator, count: int) -> None:
    for attempt in range(40):
        keys = random_keys(rng, count)
        strangers = np.concatenate([np.arange(1000, dtype=np.uint64), keys + np.uint64(1)])
        check(stored(tmp_path / f"index{attempt}", keys), keys, strangers)


def test_what_empty_slots_hold_is_not_found(tmp_path: Path, rng: np.random.Generator) -> None:
    extremes = np.array([0, 2**64 - 1], np.uint64)
    for attempt in range(200):
        assert not stored(tmp_path / f"index{attempt}", random_keys(rng, 5)).find(extremes)[1].any()


def test_keys_that_empty_slots_hold_can_be_entries(tmp_path: Path, rng: np.random.Generator) -> None:
    keys = np.concatenate([np.array([2**64 - 1, 0], np.uint64), random_keys(rng, 1000) + np.uint64(1)])
    check(stored(tmp_path / "index", keys), keys, random_keys(rng, 1000))


def test_the_same_keys_make_the_same_index(rng: np.random.Generator) -> None:
    keys = random_keys(rng, 50_000)
    first, second = build_index(keys), build_index(keys)
    assert first[0] == second[0]
    assert np.array_equal(np.concatenate(list(first[1])), np.concatenate(list(second[1])))


def test_hot_keys_lie_in_their_first_slot(rng: np.random.Generator) -> None:
    keys = random_keys(rng, 100_000)
    probe, chunks = build_index(keys)
    slots = np.concatenate(list(chunks))
    in_first = slots[probe.first(probe.hashes(keys)), 0] == keys
    assert in_first[:1000].mean() > in_first.mean() > 0.6


def test_a_crowded_index_grows_until_it_works_out(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_LOAD", 0.9)
    keys = random_keys(rng, 20_000)
    probe, _ = build_index(keys)
    assert probe.slots > 2 * keys.size
    check(stored(tmp_path / "index", keys), keys, random_keys(rng, 20_000))


def test_the_highest_load_that_two_choices_allow(rng: np.random.Generator) -> None:
    keys = random_keys(rng, 200_000)
    probes = [Probe(int(keys.size / 0.47), seed) for seed in range(6)]
    holders = [placed for probe in probes if (placed := index._place(keys, probe)) is not None]
    assert holders
    for placed in holders:
        assert np.array_equal(np.sort(placed[placed > 0]), np.arange(1, keys.size + 1))


def test_repeated_keys_cannot_be_placed() -> None:
    with pytest.raises(InvalidArgumentError, match="distinct"):
        build_index(np.array([5, 6, 7, 5, 5], np.uint64))


def wide_keys(rng: np.random.Generator, count: int, id_limit: int) -> WideKeys:
    return rng.permutation(np.unique(pack(rng.integers(1, id_limit, (count, 5)))))


@pytest.mark.parametrize("id_limit", [9, 30_522, WIDE_ID_LIMIT])
def test_wide_keys_are_found_and_no_other(tmp_path: Path, rng: np.random.Generator, id_limit: int) -> None:
    keys = wide_keys(rng, 60_000, id_limit)
    found_index = stored(tmp_path / "index", keys)
    rows, found = found_index.find(keys)
    assert found.all()
    assert np.array_equal(rows, np.arange(keys.size))
    for field in ("inner", "outer"):
        strangers = keys.copy()
        strangers[field] ^= np.uint64(1)
        known = np.isin(strangers, keys)
        assert np.array_equal(found_index.find(strangers)[1], known)
