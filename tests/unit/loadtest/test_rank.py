"""Which hPLMs the users of several workers ask."""

from __future__ import annotations

from collections import Counter

import pytest

from loadtest.users.rank import Rank, in_order_of_dispatch


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("num_hplms", [1, 2, 5, 6, 7])
@pytest.mark.parametrize("num_users", [1, 5, 6, 7, 24])
def test_users_of_all_workers_ask_all_hplms_alike(num_workers: int, num_hplms: int, num_users: int) -> None:
    """Locust hands out the users one by one, to each worker in turn."""
    ranks = [Rank(worker, num_workers) for worker in range(num_workers)]
    asked = Counter(ranks[user % num_workers].hplm_of(user // num_workers, num_hplms) for user in range(num_users))
    assert len(asked) == min(num_users, num_hplms)
    if num_users <= num_hplms:
        assert set(asked.values()) == {1}


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4])
@pytest.mark.parametrize("num_hplms", [1, 4, 5, 6, 12])
def test_a_worker_that_has_all_users_asks_all_hplms_alike(num_workers: int, num_hplms: int) -> None:
    """As where users of several classes alternate between as many workers."""
    for worker in range(num_workers):
        asked = Counter(Rank(worker, num_workers).hplm_of(user, num_hplms) for user in range(3 * num_hplms))
        assert asked == dict.fromkeys(range(num_hplms), 3)


def test_a_worker_finds_itself_in_the_order_of_dispatch() -> None:
    names = in_order_of_dispatch(["b_2", "a_9", "a_1", "c_0", "b_1"])
    assert names == ["a_1", "b_1", "c_0", "a_9", "b_2"]
    assert Rank.among("c_0", names) == Rank(2, 5)
    assert Rank.among("d_0", names) == Rank(5, 6), "one that came later"
