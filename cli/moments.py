"""Moments as users write them: a date and time, or how long from now or ago; and as they are shown."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import backends.moments
from backends.errors import InvalidArgumentError


def shown_moment(seconds: float | None) -> str | None:
    return None if seconds is None else backends.moments.shown_moment(seconds)


def read_long_span_s(text: str, option: str) -> float:
    """Read a time that may be of days: 90d, 12h, 30m, 0; a number is seconds."""
    from cli.options import read_span_s

    if not text.endswith("d"):
        return read_span_s(text, option)
    return 24 * read_span_s(f"{text[:-1]}h", option)


def read_moment(text: str, option: str, sign: int = 1) -> float:
    """Read `2026-12-31`, `2026-12-31T18:00`, both in UTC, or a time from now (`sign` 1) or ago (-1), such as `90d`.

    Returns:
        Seconds since the epoch.
    """
    if "-" not in text:
        return time.time() + sign * read_long_span_s(text, option)
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(f"{option}: {text!r} is neither a date such as 2026-12-31 nor a time") from error
