"""Where tenants' last jobs end in virtual time, as columns: a prediction must not walk through ten thousand tenants."""

from __future__ import annotations

import numpy as np

_FIRST_SIZE = 64
_PRUNE_ABOVE = 1024


class VirtualEnds:
    """Ends and weights of tenants; of one that is not here the end is past, or unknown."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._ends_us, self._weights = np.zeros(_FIRST_SIZE), np.zeros(_FIRST_SIZE)
        self._prune_above = _PRUNE_ABOVE

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._places

    def get(self, tenant: str, default: float) -> float:
        place = self._places.get(tenant)
        return default if place is None else float(self._ends_us[place])

    def put(self, tenant: str, end_us: float, weight: float) -> None:
        place = self._places.setdefault(tenant, len(self._places))
        if place == len(self._ends_us):
            self._ends_us, self._weights = (np.append(each, np.zeros(place)) for each in (self._ends_us, self._weights))
        self._ends_us[place], self._weights[place] = end_us, weight

    def move(self, tenant: str, by_us: float) -> None:
        self._ends_us[self._places[tenant]] += by_us

    def clear(self) -> None:
        self._places.clear()

    def forget_until(self, now_us: float) -> None:
        """Forget ends of the past once there are many."""
        if len(self._places) <= self._prune_above:
            return
        left = self.after(now_us)
        weights = [float(self._weights[self._places[tenant]]) for tenant in left]
        self.clear()
        for (tenant, end_us), weight in zip(left.items(), weights, strict=True):
            self.put(tenant, end_us, weight)
        self._prune_above = max(_PRUNE_ABOVE, 2 * len(left))

    def after(self, least_us: float) -> dict[str, float]:
        """Return the ends that are later."""
        ends_us = self._ends_us.tolist()
        return {tenant: ends_us[place] for tenant, place in self._places.items() if ends_us[place] > least_us}

    def room_us(self, from_us: float, until_us: float, weights: float) -> float:
        """Return how much work fits between two virtual times, of tenants of so much weight or all that end later.

        That is, by weight, from where each one's last job ends.
        """
        ends_us = self._ends_us[: len(self._places)]
        weights_of = self._weights[: len(ends_us)] * (ends_us > from_us)
        others = max(0.0, weights - float(weights_of.sum()))
        return others * (until_us - from_us) + float((until_us - ends_us.clip(from_us, until_us)) @ weights_of)
