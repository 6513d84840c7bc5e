"""Shares of a batch are computed side by side, each with its share of the threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from backends.engine.compute_pool import ComputePool, take_threads

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def my_threads() -> Iterator[None]:
    mine = torch.get_num_threads()
    yield
    take_threads(mine)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_results_come_in_the_order_of_their_shares(threads: int) -> None:
    pool, chance = ComputePool(threads, CPU), random.Random(threads)
    for count in range(1, 12):
        sleeps_s = [chance.random() / 500 for _ in range(count)]

        def compute(place: int, sleeps_s: list[float] = sleeps_s) -> int:
            time.sleep(sleeps_s[place])
            return place

        assert pool.run(compute, range(count)) == list(range(count))
    pool.close()


@pytest.mark.parametrize(("threads", "count", "each"), [(2, 1, 2), (2, 2, 1), (2, 6, 1), (8, 3, 2), (8, 1, 8)])
def test_each_share_has_its_part_of_the_threads(threads: int, count: int, each: int) -> None:
    pool = ComputePool(threads, CPU)
    take_threads(5)
    assert pool.run(lambda _: torch.get_num_threads(), range(count)) == [each] * count
    pool.close()


def test_shares_are_computed_at_the_same_time() -> None:
    pool, together = ComputePool(3, CPU), threading.Barrier(3)
    pool.run(lambda _: together.wait(timeout=30), range(3))
    pool.close()


def test_an_error_is_raised_when_nobody_computes_any_more() -> None:
    """Whoever asked may then let go of what the shares read."""
    pool, done = ComputePool(2, CPU), list[int]()

    def compute(place: int) -> None:
        if place == 0:
            raise MemoryError("no room")
        time.sleep(0.05)
        done.append(place)

    with pytest.raises(MemoryError, match="no room"):
        pool.run(compute, range(4))
    assert sorted(done) == [1, 2, 3]
    assert pool.run(lambda place: place, range(3)) == [0, 1, 2]
    pool.close()


def test_on_a_gpu_a_batch_is_one_share() -> None:
    assert {ComputePool(8, GPU).sharing_for(384).count(tokens) for tokens in (1, 100, 10_000)} == {1}


def test_small_batches_are_not_cut() -> None:
    sharing = ComputePool(2, CPU).sharing_for(384)
    assert [sharing.count(tokens) for tokens in (1, 20, 63, 64, 2048, 8192)] == [1, 1, 1, 2, 2, 8]


def test_the_wider_the_layers_the_larger_a_share() -> None:
    pool = ComputePool(4, CPU)
    assert [pool.sharing_for(size).count(128) for size in (8, 384, 768, 1024)] == [4, 4, 2, 1]
    pool.close()
