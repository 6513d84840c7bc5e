"""What a tenant may keep at the manager and have it do; a rejection names the quota."""

from __future__ import annotations

import json
from typing import Any

from backends.errors import ErrorCode, HplmError
from backends.registry.registry import Registry
from builder.manager.jobs import QUICK
from builder.manager.store import JobStore

_DAY_S = 86_400.0
_RUNNING_RETRY_MS = 10_000
"""Nothing tells when a job ends; so often a caller may ask."""
_UPLOAD_RETRY_MS = 1_000


class QuotaError(HplmError):
    """A tenant has as much as it may; `retry_after_ms` is None where waiting does not help."""

    code = ErrorCode.UNAVAILABLE

    def __init__(self, message: str, retry_after_ms: int | None = None) -> None:
        self.retry_after_ms = retry_after_ms
        facts: dict[str, Any] = {"reason": "tenant_quota"}
        if retry_after_ms is not None:
            facts["retry_after_ms"] = retry_after_ms
        super().__init__(f"{message} {json.dumps(facts)}")


def require_job_quota(registry: Registry, store: JobStore, tenant: str, kind: str, now_s: float) -> None:
    """Check that a tenant may have one more job; jobs of moments, such as deletions, are always allowed.

    Raises:
        QuotaError: As many are queued or run, or were submitted within a day, as may.
    """
    if kind in QUICK:
        return
    quota = registry.quotas.of(tenant)
    if quota.running_jobs is not None and (running := store.num_unfinished_of(tenant, QUICK)) >= quota.running_jobs:
        message = f"{running} jobs of this tenant are queued or run, as many as may (quota running_jobs)"
        raise QuotaError(message, _RUNNING_RETRY_MS)
    if quota.jobs_per_day is None:
        return
    submitted = store.submitted_of(tenant, QUICK, since_s=now_s - _DAY_S)
    if len(submitted) >= quota.jobs_per_day:
        message = (
            f"{len(submitted)} jobs of this tenant were submitted within a day, as many as may (quota jobs_per_day)"
        )
        leaves_s = submitted[-quota.jobs_per_day] + _DAY_S - now_s if quota.jobs_per_day else _DAY_S
        raise QuotaError(message, max(1, round(1000 * leaves_s)))


def no_room_for(name: str, room_bytes: int) -> QuotaError:
    return QuotaError(
        f"{name} is larger than the {room_bytes:,} bytes that this tenant may still upload (quota upload_bytes); "
        "delete uploads that no job needs"
    )


def uploads_full(kept_bytes: int, most_bytes: int) -> QuotaError:
    return QuotaError(
        f"this tenant keeps {kept_bytes:,} bytes of uploads, and may keep {most_bytes:,} (quota upload_bytes); "
        "delete some that no job needs"
    )


def uploads_open(count: int) -> QuotaError:
    message = f"{count} uploads of this tenant are under way, as many as may be; send this one when one has ended"
    return QuotaError(message, _UPLOAD_RETRY_MS)
