"""Who is within its share, for policies that do not go by shares themselves.

A policy that runs the shortest or the most urgent first would let a tenant that floods it with such rows take it all.
So a row counts as beyond its tenant's share once the tenant has asked for more device time than its part of it, and
policies choose those that are within first. The part is by weight, of all tenants that have asked of late, whether
they were let in or not: who is kept out must not thereby lose.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from backends.scheduling.fair_share import ShareSettings

_ACTIVE_US = 1_000_000
_OWING_US = 60_000_000
"""For so long it is remembered what a tenant has used that does not ask any more."""
_HEADROOM = 1.25
"""Chance alone lets a tenant ask for a bit more than its part for a while."""
_CHANCE_ROWS = 32
"""So many more than on average come by chance, now and then, of a tenant that asks for its part in single rows."""
_MEAN_OF_ROWS = 64
"""What a row costs is averaged over about so many."""


class Allowance:
    """A bucket for each tenant, of `burst_us` times its weight or a few rows, that its part of the time flows into."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._asked_us: OrderedDict[str, int] = OrderedDict()
        """When each active tenant asked last, in that order."""
        self._weights = 0.0
        self._used_us: dict[str, float] = {}
        """What of each active tenant's bucket was used, at the time of `_asked_us`."""
        self._owing: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Of those that asked once and are not active: when they asked last, and what was used then."""
        self._mean_row_us = 0.0
        """Of late, of rows within their tenants' shares."""

    def allows(self, tenant: str, now_us: int) -> bool:
        """Whether a row that the tenant asks for now is within its share."""
        self._note(tenant, now_us)
        return self._is_alone or self._used_us[tenant] <= self._bucket_us(tenant)

    def most_beyond(self, now_us: int, most: int) -> list[str]:
        """Active tenants whose next row would be beyond their shares, those that are furthest before the others."""
        if self._is_alone:
            return []
        beyond_us = {
            tenant: used_us - self._flown_us(tenant, now_us) - self._bucket_us(tenant)
            for tenant, used_us in self._used_us.items()
        }
        return heapq.nlargest(most, (tenant for tenant, us in beyond_us.items() if us > 0), key=beyond_us.__getitem__)

    def use(self, tenant: str, cost_us: float) -> None:
        """Negative for a row that will not run."""
        self._mean_row_us += (abs(cost_us) - self._mean_row_us) / _MEAN_OF_ROWS
        if tenant in self._used_us:
            self._used_us[tenant] = max(0.0, self._used_us[tenant] + cost_us)
        elif tenant in self._owing:
            asked_us, used_us = self._owing[tenant]
            self._owing[tenant] = asked_us, max(0.0, used_us + cost_us)

    @property
    def _is_alone(self) -> bool:
        """Whether only one tenant is active: nobody is beyond its share then."""
        return len(self._asked_us) == 1

    def _note(self, tenant: str, now_us: int) -> None:
        if tenant not in self._asked_us:
            self._weights += self._settings.weight(tenant)
            self._asked_us[tenant], self._used_us[tenant] = self._owing.pop(tenant, (now_us, 0.0))
        self._used_us[tenant] = max(0.0, self._used_us[tenant] - self._flown_us(tenant, now_us))
        self._asked_us[tenant] = now_us
        self._asked_us.move_to_end(tenant)
        self._forget_before(now_us)

    def _bucket_us(self, tenant: str) -> float:
        weight = self._settings.weight(tenant)
        return max(self._settings.burst_us * weight, _CHANCE_ROWS * self._mean_row_us * min(1.0, weight))

    def _flown_us(self, tenant: str, now_us: int) -> float:
        """Into the bucket since the tenant asked last."""
        part = self._settings.weight(tenant) / self._weights
        return _HEADROOM * max(0, now_us - self._asked_us[tenant]) * part

    def _forget_before(self, now_us: int) -> None:
        """Who has not asked for a while is not active, but owes what it has used for longer."""
        while self._asked_us and next(iter(self._asked_us.values())) < now_us - _ACTIVE_US:
            tenant, asked_us = self._asked_us.popitem(last=False)
            self._owing[tenant] = (asked_us, self._used_us.pop(tenant))
            self._weights -= self._settings.weight(tenant)
        while self._owing and next(iter(self._owing.values()))[0] < now_us - _OWING_US:
            self._owing.popitem(last=False)
