"""Moments as they are shown: ISO 8601, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def shown_moment(seconds: float) -> str:
    """Write seconds since the epoch as a date and time, or as a number where no calendar has them."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"
