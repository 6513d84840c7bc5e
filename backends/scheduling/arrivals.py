"""What is admitted per time, as it came lately: by kind, where some kinds overtake others, and by tenant.

Sums in which work counts less and less, and what they would be if it had always come as it came while it was watched:
an overload after quiet times is seen as soon as it is there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backends.scheduling.order import KindOrder, Load
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import Float64, Waiting, WaitingRoom

_MEMORY_US = 500_000.0
_LEAST_WATCHED_US = 200_000.0
"""Rows that come together at one moment do not come as often as that."""
_LEAST_WATCHED_OF_ALL_US = 100_000.0
"""The same for the rows of all tenants: fewer of them come together."""
_FORGOTTEN_AFTER_US = 10 * _MEMORY_US
_PRUNE_ABOVE = 1024


class KindRates:
    """Work of each kind that is admitted per time."""

    def __init__(self, num_kinds: int) -> None:
        self._sums: Float64 = np.zeros((3, num_kinds))
        """Rows, tokens and work by kind, as they count at `_updated_us`."""
        self._since_us = 0
        self._updated_us = 0

    def restart(self, now_us: int) -> None:
        self._sums[:] = 0.0
        self._since_us = self._updated_us = now_us

    def add(self, kind: int, row: Load, now_us: int) -> None:
        self._sums *= _remaining(self._updated_us, now_us)
        self._updated_us = now_us
        self._sums[:, kind] += (row.rows, row.tokens, row.work_us)

    def during(self, times_us: Float64 | float, now_us: int) -> Load:
        """Return the load if each kind came for so long as it came recently.

        Shape:
            times_us: `[num_kinds]`, or one time for all.
        """
        per_us = _remaining(self._updated_us, now_us) / _seen_us(self._since_us, now_us, _LEAST_WATCHED_US)
        rows, tokens, work_us = ((self._sums * times_us).sum(axis=1) * per_us).tolist()
        return Load(rows, tokens, work_us)


class Overtaking:
    """Arrivals of rows within their tenants' shares and beyond, where a policy has some kinds overtake others."""

    def __init__(self, order: KindOrder, capacity: Capacity) -> None:
        self.order = order
        self._capacity = capacity
        self._within = KindRates(order.num_kinds)
        self._beyond = KindRates(order.num_kinds)

    def restart(self, now_us: int) -> None:
        """Forget what came before a pause."""
        self._within.restart(now_us)
        self._beyond.restart(now_us)

    def add(self, job: Waiting, row: Load, within_share: bool, now_us: int) -> None:
        (self._within if within_share else self._beyond).add(self.order.kind(job, now_us), row, now_us)

    def of(self, job: Waiting, waiting: WaitingRoom[Any], within_share: bool, in_us: float, now_us: int) -> Load:
        """What is likely to arrive in so long, and to run before a job that arrives now."""
        times_us = self.order.overtaking_us(waiting, job, self._capacity, now_us, in_us)
        if within_share:
            return self._within.during(times_us, now_us)
        return self._within.during(in_us, now_us) + self._beyond.during(times_us, now_us)


class TenantWork:
    """Work that each tenant has been admitted lately; after a pause it is watched anew."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        """Of each tenant, as it counted at a time."""
        self._total: tuple[float, int] = (0.0, 0)
        self._since_us = 0
        self._prune_above = _PRUNE_ABOVE

    def add(self, tenant: str, work_us: float, now_us: int) -> None:
        if not self._total[0] or now_us - self._total[1] > _MEMORY_US:
            self._sums.clear()
            self._total, self._since_us = (0.0, now_us), now_us
        self._sums[tenant] = (_left(self._sums.get(tenant), now_us) + work_us, now_us)
        self._total = (_left(self._total, now_us) + work_us, now_us)
        if len(self._sums) > self._prune_above:
            self._sums = {name: each for name, each in self._sums.items() if now_us - each[1] < _FORGOTTEN_AFTER_US}
            self._prune_above = max(_PRUNE_ABOVE, 2 * len(self._sums))

    def of_others(self, tenant: str, now_us: int) -> float:
        """Return the part of the device that all other tenants have been admitted lately; above 1 in an overload."""
        others_us = _left(self._total, now_us) - _left(self._sums.get(tenant), now_us)
        return max(0.0, others_us) / _seen_us(self._since_us, now_us, _LEAST_WATCHED_OF_ALL_US)


def _left(work: tuple[float, int] | None, now_us: int) -> float:
    """Return what is left of work that was added up at a time."""
    if work is None:
        return 0.0
    work_us, at_us = work
    return work_us * _remaining(at_us, now_us)


def _remaining(from_us: int, to_us: int) -> float:
    return math.exp((from_us - to_us) / _MEMORY_US)


def _seen_us(since_us: int, now_us: int, least_us: float) -> float:
    """Return what the time that was watched adds up to, by how much each part of it counts."""
    return _MEMORY_US * (1.0 - math.exp(-max(least_us, now_us - since_us) / _MEMORY_US))
