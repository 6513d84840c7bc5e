"""Why a request is refused, for its sender and for the figures."""

from __future__ import annotations

from enum import StrEnum

from backends.errors import UnavailableError

_LATE_WAITING = "the deadline passed while the request waited"
_LATE_ON_ARRIVAL = "the deadline passed on the way to the engine"
_HOPELESS = "the deadline passes before a batch with the request could be done"


class Refusal(StrEnum):
    """Reasons, as they stand on the metrics endpoint."""

    PREDICTED_LATE = "predicted_late"
    LATE_ON_ARRIVAL = "late_on_arrival"
    LATE_WAITING = "late_waiting"
    LATE_COMPUTED = "late_computed"
    QUEUE_FULL = "queue_full"
    TENANT_QUOTA = "tenant_quota"
    TENANT_SHARE = "tenant_share"


class RefusedError(UnavailableError):
    """Nothing is wrong with the request but the moment."""

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def late_on_arrival() -> RefusedError:
    return RefusedError(Refusal.LATE_ON_ARRIVAL, _LATE_ON_ARRIVAL)


def late_waiting() -> RefusedError:
    return RefusedError(Refusal.LATE_WAITING, _LATE_WAITING)


def hopeless() -> RefusedError:
    """Of a job that waits, and is late already but for the time that its batch would take."""
    return RefusedError(Refusal.LATE_WAITING, _HOPELESS)


def predicted_late(finish_in_us: float, deadline_in_us: float) -> RefusedError:
    answer_ms, deadline_ms = finish_in_us / 1000, deadline_in_us / 1000
    return RefusedError(
        Refusal.PREDICTED_LATE,
        f"predicted to be answered in {answer_ms:.0f} ms; the deadline is in {deadline_ms:.0f} ms",
    )
