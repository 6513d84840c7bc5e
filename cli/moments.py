"""Moments as users write them: a date and time, or how long from now or ago; and as they are shown."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import backends.moments
from backends.errors import InvalidArgumentError, shown


def shown_moment(seconds: float | None) -> str | None:
    return None if seconds is None else backends.moments.shown_moment(seconds)


def read_long_span_s(text: str, option: str) -> float:
    """Read a time that may be of days: 90d, 12h, 30m, 0; a number is seconds."""
    return _long_span_s(text, f"{option}: {shown(text)} is no time such as 90d, 12h, 30m or 0")


def read_moment(text: str, option: str, sign: int = 1) -> float:
    """Read `2026-12-31`, `2026-12-31T18:00`, both in UTC, or a time from now (`sign` 1) or ago (-1), such as `90d`.

    Returns:
        Seconds since the epoch.
    """
    complaint = f"{option}: {shown(text)} is neither a date such as 2026-12-31 nor a time such as 90d or 12h"
    if "-" not in text:
        return time.time() + sign * _long_span_s(text, complaint)
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(complaint) from error


def _long_span_s(text: str, complaint: str) -> float:
    from cli.options import read_span_s

    try:
        return 24 * read_span_s(f"{text[:-1]}h", "") if text.endswith("d") else read_span_s(text, "")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(complaint) from error
