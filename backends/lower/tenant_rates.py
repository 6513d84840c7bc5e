"""How much tenants may send a second: rows, and bytes of text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backends.lower.shared_buckets import Pair, SharedBuckets
from backends.registry.quotas import Quota, TenantQuota
from backends.scheduling.rejection import RejectedError, tenant_rate

_US_PER_S = 1_000_000


class TenantRates:
    """Counts what tenants send to all processes of the model, and says when that is too much.

    Each tenant with such a quota has a bucket of rows and one of bytes. A bucket holds a second's worth, and what is
    used of it flows back steadily. Tenants without these quotas cost nothing.

    Args:
        rates: The quotas by tenant, which may change.
        path: The file of the buckets; by default that of this server.
    """

    def __init__(self, rates: Mapping[str, TenantQuota], path: Path | None = None) -> None:
        self._rates = rates
        self._path = path
        self._buckets: SharedBuckets | None = None

    def admit(self, tenant: str, num_rows: int, size_bytes: int, now_us: int) -> RejectedError | None:
        """Count a request of a tenant, or return why it is rejected; then it counts for nothing.

        A request of more than a second's worth is admitted when nothing of the bucket is used, and owes the rest.
        """
        entry = self._rates.get(tenant)
        if entry is None:
            return None
        if self._buckets is None:
            self._buckets = SharedBuckets(self._path)
        with self._buckets.locked(entry.number) as pair:
            return _admit(pair, entry.quota, num_rows, size_bytes, now_us)

    def close(self) -> None:
        if self._buckets is not None:
            self._buckets.close()


def _admit(pair: Pair, quota: Quota, num_rows: int, size_bytes: int, now_us: int) -> RejectedError | None:
    if pair.at_us > now_us + _US_PER_S:  # left by a server before the machine was restarted
        pair.used = 0.0, 0.0
    passed_us = max(0, now_us - pair.at_us)
    limits = (("rows_per_s", quota.rows_per_s, num_rows), ("bytes_per_s", quota.bytes_per_s, size_bytes))
    used: list[float] = []
    for before, (name, per_s, amount) in zip(pair.used, limits, strict=True):
        left = 0.0 if per_s is None else max(0.0, before - per_s * passed_us / _US_PER_S)
        if per_s is not None and (beyond := left + min(amount, per_s) - per_s) > 0:
            return tenant_rate(name, per_s, _US_PER_S * beyond / per_s)
        used.append(0.0 if per_s is None else left + amount)
    pair.at_us, pair.used = now_us, (used[0], used[1])
    return None
