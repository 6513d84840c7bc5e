"""Fair shares: every tenant gets device time in proportion to its weight while others want some, whoever floods.

Start-time fair queueing. A clock counts virtual time, which goes the slower the more tenants wait: by the work that
runs over the sum of their weights. A job starts, in virtual time, now or where its tenant's jobs before it end; whoever
takes them in the order of these starts shares fairly. A tenant that asks for no more than its share always starts now;
a flood starts further and further in the future, behind everybody else's next job.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.errors import InvalidArgumentError, shown

_SEPARATOR = "/"
_PRUNE_ABOVE = 1024


def tenant_of(hplm: str) -> str:
    """The tenant of an hPLM's ID."""
    return hplm.partition(_SEPARATOR)[0]


@dataclass(frozen=True)
class ShareSettings:
    """Weights by tenant, 1 for all others.

    `burst_us` of device time, times its weight, a tenant may ask for at once before it stands behind others.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    burst_us: float = 50_000.0

    def __post_init__(self) -> None:
        for tenant, weight in self.weights.items():
            if not 0.001 <= weight <= 1000:
                raise InvalidArgumentError(f"the weight of tenant {shown(tenant)} is {weight:g}, not 0.001 to 1000")
        if not self.burst_us >= 0:
            raise InvalidArgumentError(f"a burst cannot be {self.burst_us:g} us long")

    def weight(self, tenant: str) -> float:
        return self.weights.get(tenant, 1.0)


class FairShare:
    """The clock of virtual time, and each tenant's place on it. All times are in microseconds of device time."""

    def __init__(self, settings: ShareSettings) -> None:
        self._settings = settings
        self._now_us = 0.0
        self._ends_us: dict[str, float] = {}
        """Where the last job of a tenant ends; without those of the past."""
        self._rows: dict[str, int] = {}
        """That wait, of every tenant that has some."""
        self._weights = 0.0
        self._prune_above = _PRUNE_ABOVE

    @property
    def now_us(self) -> float:
        return self._now_us

    def rows_of(self, tenant: str) -> int:
        return self._rows.get(tenant, 0)

    def share_of(self, tenant: str) -> float:
        """Of all tenants that wait, and this one."""
        weight = self._settings.weight(tenant)
        return weight / (self._weights if tenant in self._rows else self._weights + weight)

    def start_us(self, tenant: str) -> float:
        """Where the tenant's next job would start."""
        burst_us = self._settings.burst_us
        return max(self._now_us, self._ends_us.get(tenant, self._now_us) - burst_us)

    def furthest_ahead(self, most: int) -> list[str]:
        """Tenants whose next job would not start now, those that would start last before the others."""
        least_us = self._now_us + self._settings.burst_us
        ahead = ((end_us, tenant) for tenant, end_us in self._ends_us.items() if end_us > least_us)
        return [tenant for _, tenant in heapq.nlargest(most, ahead)]

    def enter(self, tenant: str, cost_us: float) -> None:
        """A job of the tenant waits."""
        weight = self._settings.weight(tenant)
        begins_us = max(self._now_us, self._ends_us.get(tenant, self._now_us))
        self._ends_us[tenant] = begins_us + cost_us / weight
        rows = self._rows.get(tenant, 0)
        self._rows[tenant] = rows + 1
        if not rows:
            self._weights += weight

    def leave(self, tenant: str) -> None:
        """A job of the tenant waits no longer; what it was to cost stays on the tenant's account."""
        rows = self._rows[tenant] - 1
        if rows:
            self._rows[tenant] = rows
            return
        del self._rows[tenant]
        self._weights -= self._settings.weight(tenant)
        if not self._rows:  # nobody stands behind anybody any more, and no rounding is left
            self._weights = 0.0
            self._ends_us.clear()

    def give_back(self, tenant: str, cost_us: float) -> None:
        """A job was taken off the queue without having run."""
        if tenant in self._ends_us:
            self._ends_us[tenant] -= cost_us / self._settings.weight(tenant)

    def serve(self, charge_us: float) -> None:
        """Jobs of this charge are about to leave, because they run."""
        if self._weights > 0:
            self._now_us += charge_us / self._weights

    def catch_up(self, first_start_us: float | None) -> None:
        """The clock is never behind the first job that waits, where there is one."""
        if first_start_us is not None:
            self._now_us = max(self._now_us, first_start_us)
        if len(self._ends_us) > self._prune_above:
            self._ends_us = {tenant: end for tenant, end in self._ends_us.items() if end > self._now_us}
            self._prune_above = max(_PRUNE_ABOVE, 2 * len(self._ends_us))
