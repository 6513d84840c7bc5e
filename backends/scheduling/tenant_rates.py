"""How much of the device tenants have been admitted lately: so much will overtake a row that stands behind others."""

from __future__ import annotations

import math

_MEMORY_US = 500_000.0
"""Work counts for so long, less and less."""
_FORGOTTEN_AFTER_US = 10 * _MEMORY_US
_PRUNE_ABOVE = 1024


class TenantRates:
    """Sums of work by tenant in which older work counts less; divided by the memory, they are parts of the device."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}
        """Of each tenant, as it counted at a time."""
        self._total: tuple[float, int] = (0.0, 0)
        self._prune_above = _PRUNE_ABOVE

    def add(self, tenant: str, work_us: float, now_us: int) -> None:
        self._sums[tenant] = (_left(self._sums.get(tenant), now_us) + work_us, now_us)
        self._total = (_left(self._total, now_us) + work_us, now_us)
        if len(self._sums) > self._prune_above:
            self._sums = {name: each for name, each in self._sums.items() if now_us - each[1] < _FORGOTTEN_AFTER_US}
            self._prune_above = max(_PRUNE_ABOVE, 2 * len(self._sums))

    def of_others(self, tenant: str, now_us: int) -> float:
        """Return the part of the device that all other tenants have been admitted lately; above 1 in an overload."""
        others_us = _left(self._total, now_us) - _left(self._sums.get(tenant), now_us)
        return max(0.0, others_us) / _MEMORY_US


def _left(work: tuple[float, int] | None, now_us: int) -> float:
    """Return what is left of work that was added up at a time."""
    if work is None:
        return 0.0
    work_us, at_us = work
    return work_us * math.exp((at_us - now_us) / _MEMORY_US)
