"""Checks of settings; the message names the setting."""

from __future__ import annotations

import math

from workload.errors import WorkloadError

MOST_TOKENS = 1 << 20
"""The longest request."""
_MOST_REQUESTS = 200_000_000
"""A day at 2,000 a second is fewer."""


def check_positive(**settings: float) -> None:
    for name, value in settings.items():
        if not (math.isfinite(value) and value > 0):
            raise WorkloadError(f"{name} must be a number above 0, not {value}")


def check_duration(duration_s: float) -> None:
    if not (math.isfinite(duration_s) and duration_s >= 0):
        raise WorkloadError(f"a load lasts 0 seconds or more, not {duration_s}")


def check_load(num_requests: float) -> None:
    """Reject a load that would not fit into memory, before it is drawn."""
    if num_requests > _MOST_REQUESTS:
        raise WorkloadError(
            f"{num_requests:.6g} requests are more than {_MOST_REQUESTS:,}; ask for a lower rate or a shorter time"
        )


def check_count(count: int) -> None:
    if count < 0:
        raise WorkloadError(f"0 or more can be drawn, not {count}")
