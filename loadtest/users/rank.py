"""The rank of a worker among those of a test, by which its users know which hPLMs are theirs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Rank(NamedTuple):
    """Which worker this process is, from 0 on, in the order in which Locust hands out users."""

    worker: int = 0
    num_workers: int = 1

    @classmethod
    def among(cls, name: str, names: Sequence[str]) -> Rank:
        """Return the rank of a worker; one that joined when the test had begun comes after all others."""
        worker = names.index(name) if name in names else len(names)
        return cls(worker, max(len(names), worker + 1))

    def hplm_of(self, user: int, num_hplms: int) -> int:
        """Return which hPLM the user asks that is number `user` of its class on this worker.

        Semantics: where each worker has its part of the users, all of them ask every hPLM before they ask one twice.
        So does a worker that has them all: its steps are `num_workers` long, and where they would lead back to the
        first hPLM it goes on with the next one.
        """
        step = user * self.num_workers
        rounds = step // math.lcm(self.num_workers, num_hplms) % math.gcd(self.num_workers, num_hplms)
        return (step + self.worker + rounds) % num_hplms


def in_order_of_dispatch(names: Iterable[str]) -> list[str]:
    """Sort the IDs of workers, `HOST_…`, as Locust hands out users: to the first of each host, then to the second."""
    seen: Counter[str] = Counter()
    order = []
    for name in sorted(names):
        host = name.partition("_")[0]
        order.append((seen[host], name))
        seen[host] += 1
    return [name for _, name in sorted(order)]
