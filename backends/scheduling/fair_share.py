"""Fair shares: every tenant gets device time in proportion to its weight while others wait, however much one requests.

Start-time fair queueing. A clock counts virtual time, which goes slower the more tenants wait: by the work that runs
over the sum of their weights. A job starts, in virtual time, now or where its tenant's jobs before it end; jobs that
run in the order of these starts share fairly. A tenant that requests no more than its share always starts now; an
overload by one tenant starts further and further in the future, behind the next job of every other tenant.

Policies that do not go by these starts, but by lengths or deadlines, would let one tenant that requests much of what
they prefer take all. They choose rows first whose tenants have something left in their bucket (`ShareBuckets`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from backends.scheduling.settings import ShareSettings
from backends.scheduling.virtual_ends import VirtualEnds

_ACTIVE_US = 1_000_000
_OWING_US = 60_000_000
"""What a tenant has used that requests nothing any more is remembered for so long."""
_HEADROOM = 1.25
"""A tenant requests somewhat more than its share for a while by chance alone."""
_CHANCE_ROWS = 32
"""So many more rows than on average arrive now and then by chance, where a tenant requests its share in single rows."""
_MEAN_OF_ROWS = 64


class FairShare:
    """The clock of virtual time, and each tenant's account on it. All times are in microseconds of device time."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._now_us = 0.0
        self._ends_us = VirtualEnds()
        self._rows: dict[str, int] = {}
        """That wait, of every tenant that has some."""
        self._counted: dict[str, float] = {}
        """The weight that each tenant with waiting rows was counted with; a change counts from its next row on."""
        self._weights = 0.0
        self._weights_before = 0.0
        """Before the last batch was taken: just after it, fewer tenants wait than as a rule."""

    def rows_of(self, tenant: str) -> int:
        return self._rows.get(tenant, 0)

    def share_of(self, tenant: str) -> float:
        """The tenant's part of the device while all tenants that wait, and this one, want some."""
        return self._weight(tenant) / self._weights_with(tenant)

    def start_us(self, tenant: str, less_us: float = 0.0) -> float:
        """When the tenant's next job would start, in virtual time, if its jobs before were charged so much less."""
        return max(self._now_us, self._end_us(tenant, less_us) - self._settings.burst_us)

    def is_beyond(self, tenant: str) -> bool:
        """Whether the tenant has requested so much more than its share that its next job would not start now."""
        return self.start_us(tenant) > self._now_us

    def room_us(self, tenant: str, less_us: float = 0.0) -> float:
        """How much other tenants, as many as wait or did lately, may yet request that runs before a tenant's next job.

        Each may request what the tenant has requested, by weight; nothing overtakes a job that starts now.
        """
        if self.start_us(tenant, less_us) <= self._now_us:
            return 0.0
        weights = max(self._weights_before, self._weights_with(tenant))
        return self._ends_us.room_us(self._now_us, self._end_us(tenant, less_us), weights)

    def furthest_ahead(self, most: int) -> list[str]:
        """Tenants whose next job would not start now, those that would start last before the others."""
        ahead = self._ends_us.after(self._now_us + self._settings.burst_us)
        return heapq.nlargest(most, ahead, key=ahead.__getitem__)

    def enter(self, tenant: str, cost_us: float) -> None:
        """Charge a job of the tenant that waits from now on."""
        weight = self._settings.weight(tenant)
        begins_us = max(self._now_us, self._ends_us.get(tenant, self._now_us))
        self._ends_us.put(tenant, begins_us + cost_us / weight, weight)
        self._rows[tenant] = self._rows.get(tenant, 0) + 1
        self._weights += weight - self._counted.get(tenant, 0.0)
        self._counted[tenant] = weight

    def leave(self, tenant: str) -> None:
        """A job of the tenant waits no longer; what it was to cost stays on the tenant's account."""
        rows = self._rows[tenant] - 1
        if rows:
            self._rows[tenant] = rows
            return
        del self._rows[tenant]
        self._weights -= self._counted.pop(tenant)
        if not self._rows:  # no job stands behind another any more, and no rounding is left
            self._weights = 0.0
            self._ends_us.clear()

    def give_back(self, tenant: str, cost_us: float) -> None:
        """Take off the account what a job was to cost that has not run."""
        if tenant in self._ends_us:
            self._ends_us.move(tenant, -cost_us / self._weight(tenant))

    def serve(self, charge_us: float) -> None:
        """Jobs of this charge are about to leave, because they run."""
        self._weights_before = self._weights
        if self._weights > 0:
            self._now_us += charge_us / self._weights

    def catch_up(self, first_start_us: float | None) -> None:
        """The clock is never behind the first job that waits, where there is one."""
        if first_start_us is not None:
            self._now_us = max(self._now_us, first_start_us)
        self._ends_us.forget_until(self._now_us)

    def _weights_with(self, tenant: str) -> float:
        """Add up the weights of all tenants that wait, and of this one."""
        return self._weights if tenant in self._rows else self._weights + self._weight(tenant)

    def _end_us(self, tenant: str, less_us: float) -> float:
        return self._ends_us.get(tenant, self._now_us) - less_us / self._weight(tenant)

    def _weight(self, tenant: str) -> float:
        return self._counted.get(tenant) or self._settings.weight(tenant)


class ShareBuckets:
    """A bucket for each tenant, of `burst_us` times its weight or a few rows, which its share of the time flows into.

    The share is by weight, among all tenants that have requested something within a second, admitted or rejected: a
    tenant whose rows are rejected must not thereby lose.
    """

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._requested_us: OrderedDict[str, int] = OrderedDict()
        """When each active tenant requested something last, in that order."""
        self._counted: dict[str, float] = {}
        """The weight that each active tenant was counted with."""
        self._weights = 0.0
        self._used_us: dict[str, float] = {}
        """What was used of each active tenant's bucket at the time of `_requested_us`."""
        self._owing: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Tenants that were active: when they requested something last, and what was used then."""
        self._beyond: set[str] = set()
        """Active tenants whose last row was beyond their share."""
        self._mean_row_us = 0.0

    def allows(self, tenant: str, now_us: int) -> bool:
        """Whether a row that the tenant requests now is within its share."""
        self._note(tenant, now_us)
        is_within = self._is_alone or self._used_us[tenant] <= self._bucket_us(tenant)
        (self._beyond.discard if is_within else self._beyond.add)(tenant)
        return is_within

    def most_beyond(self, now_us: int, most: int) -> list[str]:
        """Active tenants whose next row would be beyond their shares, those that are furthest before the others."""
        if self._is_alone:
            return []
        beyond_us = {
            tenant: self._used_us[tenant] - self._flown_us(tenant, now_us) - self._bucket_us(tenant)
            for tenant in self._beyond
        }
        return heapq.nlargest(most, (tenant for tenant, us in beyond_us.items() if us > 0), key=beyond_us.__getitem__)

    def use(self, tenant: str, row_us: float) -> None:
        """Take the cost of a row out of the bucket."""
        self._mean_row_us += (row_us - self._mean_row_us) / _MEAN_OF_ROWS
        self.charge(tenant, row_us)

    def charge(self, tenant: str, cost_us: float) -> None:
        """Take any cost out of the bucket, or put it back where it is negative."""
        if tenant in self._used_us:
            self._used_us[tenant] = max(0.0, self._used_us[tenant] + cost_us)
        elif tenant in self._owing:
            requested_us, used_us = self._owing[tenant]
            self._owing[tenant] = requested_us, max(0.0, used_us + cost_us)

    @property
    def _is_alone(self) -> bool:
        """Whether only one tenant is active, which has no share to exceed."""
        return len(self._requested_us) == 1

    def _note(self, tenant: str, now_us: int) -> None:
        weight = self._settings.weight(tenant)
        self._weights += weight - self._counted.get(tenant, 0.0)
        self._counted[tenant] = weight
        if tenant not in self._requested_us:
            self._requested_us[tenant], self._used_us[tenant] = self._owing.pop(tenant, (now_us, 0.0))
        self._used_us[tenant] = max(0.0, self._used_us[tenant] - self._flown_us(tenant, now_us))
        self._requested_us[tenant] = now_us
        self._requested_us.move_to_end(tenant)
        self._forget_before(now_us)

    def _bucket_us(self, tenant: str) -> float:
        weight = self._settings.weight(tenant)
        return max(self._settings.burst_us * weight, _CHANCE_ROWS * self._mean_row_us * min(1.0, weight))

    def _flown_us(self, tenant: str, now_us: int) -> float:
        """What has flown into the bucket since the tenant's last request."""
        share = self._settings.weight(tenant) / self._weights
        return _HEADROOM * max(0, now_us - self._requested_us[tenant]) * share

    def _forget_before(self, now_us: int) -> None:
        """A tenant without a request for a second is not active, but owes for longer what it has used."""
        while self._requested_us and next(iter(self._requested_us.values())) < now_us - _ACTIVE_US:
            tenant, requested_us = self._requested_us.popitem(last=False)
            self._owing[tenant] = (requested_us, self._used_us.pop(tenant))
            self._beyond.discard(tenant)
            self._weights -= self._counted.pop(tenant)
        while self._owing and next(iter(self._owing.values()))[0] < now_us - _OWING_US:
            self._owing.popitem(last=False)
