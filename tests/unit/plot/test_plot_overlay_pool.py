from __future__ import annotations

import threading

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from backends.plot.arrays import Float16Array, Keys
from backends.plot.keys import pack
from backends.plot.overlay_log import FragmentLayout
from backends.plot.overlay_pool import OverlayPool

HIDDEN = 8


def random_keys(rng: np.random.Generator, count: int, n: int) -> Keys:
    keys = np.unique(pack(rng.integers(1, 30_000, (count + count // 10 + 10, n))))
    return rng.permutation(keys)[:count]


def random_vectors(rng: np.random.Generator, count: int, n: int) -> Float16Array:
    return rng.standard_normal((count, n * HIDDEN)).astype(np.float16)


def ones(keys: Keys) -> np.ndarray:
    return np.ones(keys.size, np.uint32)


def pool_of(rows: int, n: int = 3) -> OverlayPool:
    layout = FragmentLayout(n, n * HIDDEN)
    return OverlayPool(rows * OverlayPool(1 << 20, layout).row_bytes, layout)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_pool_with_room_is_a_dictionary(rng: np.random.Generator, n: int) -> None:
    pool = pool_of(20_000, n)
    owners = [pool.new_owner() for _ in range(3)]
    reference: dict[tuple[int, bytes], bytes] = {}
    keys = random_keys(rng, 5_000, n) if n != 2 else random_keys(rng, 5_000, 3)
    for _ in range(60):
        owner, chosen = int(rng.choice(owners)), rng.choice(keys, int(rng.integers(1, 300)))
        vectors = random_vectors(rng, chosen.size, n)
        pool.add(owner, chosen, vectors, ones(chosen))
        for key, vector in zip(chosen, vectors, strict=True):
            reference.setdefault((owner, key.tobytes()), vector.tobytes())
        asked = rng.choice(keys, 500)
        owner = int(rng.choice(owners))
        found_vectors, found, _ = pool.fetch(owner, asked)
        assert found.tolist() == [(owner, key.tobytes()) in reference for key in asked]
        assert np.array_equal(found, pool.contains(owner, asked))
        expected = [reference[owner, key.tobytes()] for key in asked[found]]
        assert [vector.tobytes() for vector in found_vectors] == expected
    assert pool.entries == len(reference)
    assert pool.evicted == 0


@pytest.mark.parametrize("n", [3, 5])
def test_under_a_tiny_bound_nothing_is_wrong_and_hot_fragments_stay(rng: np.random.Generator, n: int) -> None:
    pool = pool_of(256, n)
    owners = [pool.new_owner(), pool.new_owner()]
    keys = random_keys(rng, 6_000, n)
    vectors = {owner: random_vectors(rng, keys.size, n) for owner in owners}
    hot = np.arange(60)
    kept = []
    for start in range(100, 6_000, 50):
        for owner in owners:
            for places in (hot, np.arange(start, start + 50)):
                got, found, _ = pool.fetch(owner, keys[places])
                assert np.array_equal(got, vectors[owner][places[found]])
                pool.add(owner, keys[places], vectors[owner][places], ones(places))
            kept.append(pool.contains(owner, keys[hot]).mean())
    assert pool.entries <= 256
    assert pool.evicted > 5_000
    assert np.mean(kept[20:]) > 0.95


def test_uses_are_counted_and_fade(rng: np.random.Generator) -> None:
    pool = pool_of(64)
    owner = pool.new_owner()
    keys = random_keys(rng, 64, 3)
    pool.add(owner, keys, random_vectors(rng, 64, 3), ones(keys))
    for _ in range(99):
        pool.fetch(owner, keys[:4])
    uses = pool.fragments(owner)
    assert sorted(uses.uses.tolist())[-5:] == [1, 100, 100, 100, 100]
    fresh = random_keys(rng, 2_000, 3)
    pool.add(owner, fresh, random_vectors(rng, fresh.size, 3), ones(fresh))
    assert max(pool.fragments(owner).uses.tolist()) < 50


def test_what_an_owner_releases_is_gone_and_makes_room(rng: np.random.Generator) -> None:
    pool = pool_of(512)
    first, second = pool.new_owner(), pool.new_owner()
    keys, vectors = random_keys(rng, 200, 3), random_vectors(rng, 200, 3)
    pool.add(first, keys, vectors, ones(keys))
    pool.add(second, keys, vectors[::-1].copy(), ones(keys))
    pool.release(first)
    assert not pool.contains(first, keys).any()
    assert np.array_equal(pool.fetch(second, keys)[0], vectors[::-1])
    assert pool.entries == 200
    assert pool.size_bytes == 200 * pool.row_bytes


def test_readers_never_see_half_a_change(rng: np.random.Generator) -> None:
    """One thread adds to a pool that always evicts, another checks that each vector spells its key."""
    pool = pool_of(300)
    owner = pool.new_owner()
    keys = np.arange(1, 4_000, dtype=np.uint64) << np.uint64(21)
    vectors = np.repeat(np.arange(1, 4_000).astype(np.float16)[:, None], 3 * HIDDEN, axis=1)
    stopping = threading.Event()

    def add() -> None:
        chance = np.random.default_rng(1)
        while not stopping.is_set():
            chosen = chance.integers(0, keys.size, 200)
            pool.add(owner, keys[chosen], vectors[chosen], ones(chosen))

    thread = threading.Thread(target=add)
    thread.start()
    hits = 0
    try:
        for _ in range(400):
            asked = rng.integers(0, keys.size, 100)
            got, found, _ = pool.fetch(owner, keys[asked])
            assert np.array_equal(got, vectors[asked[found]])
            hits += int(found.sum())
    finally:
        stopping.set()
        thread.join()
    assert hits > 100


def test_a_bound_that_holds_next_to_nothing_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="too small"):
        OverlayPool(2_000, FragmentLayout(3, 3 * HIDDEN))
