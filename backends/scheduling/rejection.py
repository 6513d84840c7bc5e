"""Why a request is rejected, for its sender and for the metrics.

The message of a rejection ends with a JSON object that clients read: `{"reason": "queue_full", "retry_after_ms": 200}`.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum

from backends.errors import UnavailableError

_LATE_WAITING = "the deadline passed while the request waited"
_LATE_ON_ARRIVAL = "the deadline passed on the way to the engine"
_INFEASIBLE = "the deadline passes before a batch with the request could be done"
_LATE_COMPUTED = "the deadline passed while the request was computed"
_LEAST_RETRY_MS, _MOST_RETRY_MS = 10, 10_000
_QUEUE_RETRY_MS = 200
"""Where too many rows wait, some of them are answered in this time."""
_LATE_RETRY_MS = 50


class Rejection(StrEnum):
    """Reasons, as they stand on the metrics endpoint."""

    PREDICTED_LATE = "predicted_late"
    LATE_ON_ARRIVAL = "late_on_arrival"
    LATE_WAITING = "late_waiting"
    LATE_COMPUTED = "late_computed"
    QUEUE_FULL = "queue_full"
    TENANT_QUOTA = "tenant_quota"
    TENANT_SHARE = "tenant_share"


_FACTS = re.compile(r'\{"reason": "(\w+)", "retry_after_ms": \d+\}$')


def reason_of(message: str) -> Rejection | None:
    """Read the reason off the message of a rejection; None for other errors."""
    facts = _FACTS.search(message)
    return Rejection(facts[1]) if facts is not None and facts[1] in list(Rejection) else None


class RejectedError(UnavailableError):
    """Nothing is wrong with the request but the moment; the same request may be answered after `retry_after_ms`."""

    def __init__(self, reason: Rejection, message: str, retry_after_ms: float = _LATE_RETRY_MS) -> None:
        self.reason = reason
        self.retry_after_ms = round(min(max(retry_after_ms, _LEAST_RETRY_MS), _MOST_RETRY_MS))
        super().__init__(f'{message} {{"reason": "{reason.value}", "retry_after_ms": {self.retry_after_ms}}}')


def late_on_arrival() -> RejectedError:
    return RejectedError(Rejection.LATE_ON_ARRIVAL, _LATE_ON_ARRIVAL)


def late_waiting() -> RejectedError:
    return RejectedError(Rejection.LATE_WAITING, _LATE_WAITING)


def infeasible() -> RejectedError:
    """The job waits, and what is left of its deadline is less than its batch would take."""
    return RejectedError(Rejection.LATE_WAITING, _INFEASIBLE)


def predicted_late(finish_in_us: float, deadline_in_us: float) -> RejectedError:
    """Reject a request until the wait is shorter by as much as it would be late."""
    answer_ms, deadline_ms = finish_in_us / 1000, deadline_in_us / 1000
    return RejectedError(
        Rejection.PREDICTED_LATE,
        # Rounded apart, or they might look alike.
        f"predicted to be answered in {math.ceil(answer_ms)} ms; the deadline is in {math.floor(deadline_ms)} ms",
        answer_ms - deadline_ms,
    )


def late_computed() -> RejectedError:
    return RejectedError(Rejection.LATE_COMPUTED, _LATE_COMPUTED)


def queue_full(num_waiting: int) -> RejectedError:
    return RejectedError(Rejection.QUEUE_FULL, f"the queue is full: {num_waiting} rows wait", _QUEUE_RETRY_MS)


def root_loading(num_waiting: int) -> RejectedError:
    message = f"the root of this hPLM is being loaded, and {num_waiting} rows wait for it"
    return RejectedError(Rejection.QUEUE_FULL, message, _QUEUE_RETRY_MS)


def versions_looked_up(num_waiting: int) -> RejectedError:
    message = f"the version of this hPLM is being looked up, and {num_waiting} rows wait for that"
    return RejectedError(Rejection.QUEUE_FULL, message, _QUEUE_RETRY_MS)


def tenant_quota(num_waiting: int) -> RejectedError:
    message = f"{num_waiting} rows of this tenant wait, as many as may (quota waiting_rows)"
    return RejectedError(Rejection.TENANT_QUOTA, message, _QUEUE_RETRY_MS)


def tenant_bytes(num_waiting: int) -> RejectedError:
    message = f"{num_waiting:,} bytes of this tenant's texts wait, as many as may"
    return RejectedError(Rejection.TENANT_QUOTA, message, _QUEUE_RETRY_MS)


def tenant_rate(quota: str, per_s: float, wait_us: float) -> RejectedError:
    """Reject a tenant that has sent what its quota allows, until that allows more."""
    message = f"this tenant has sent as much as it may (quota {quota} = {per_s:g})"
    return RejectedError(Rejection.TENANT_QUOTA, message, wait_us / 1000)


def tenant_share(num_waiting: int) -> RejectedError:
    message = f"{num_waiting} rows of this tenant wait, its share of a queue that others wait in too"
    return RejectedError(Rejection.TENANT_SHARE, message, _QUEUE_RETRY_MS)
