"""Recorded traffic as a trace that `workload.traces` reads: a line for each row.

    time_s,hplm,tokens,deadline_ms,level

Only the sum of a request's tokens is recorded, so its rows get equal parts of it. A deadline is rounded up to whole
milliseconds; without one the column is empty. So is that of the level, where it is `auto`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from backends.errors import InvalidArgumentError, NotFoundError
from backends.storage import replacing
from backends.wire import AUTO
from builder.traffic.traffic import Requests, Traffic

COLUMNS = ("time_s", "hplm", "tokens", "deadline_ms", "level")
_AT_ONCE = 10_000


def write_trace(traffic: Traffic, path: Path) -> int:
    """Write a trace of all that was asked, rejected requests too, as CSV; returns its number of lines.

    Raises:
        NotFoundError: There is no request.
        InvalidArgumentError: The folder does not exist.
    """
    requests = traffic.requests
    if not len(requests):
        raise NotFoundError("no request was recorded in this time, so there is no trace to write")
    if not path.parent.is_dir():
        raise InvalidArgumentError(f"the folder {path.parent} does not exist")
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        names, levels = [hplm.id for hplm in traffic.hplms], [_shown_level(name) for name in traffic.levels]
        for lines in _lines(requests, names, levels):
            writer.writerows(lines)
        text.detach()
    return int(requests.rows.sum())


def _shown_level(level: str) -> str:
    return "" if level == AUTO else level


def _lines(requests: Requests, names: list[str], levels: list[str]) -> Iterator[list[tuple[str, str, int, str, str]]]:
    """Yield lines, those of some thousand records at a time; times count from the first request."""
    for start in range(0, len(requests), _AT_ONCE):
        part = requests.where(np.arange(start, min(start + _AT_ONCE, len(requests))))
        times_us = part.arrived_us - requests.arrived_us[0]
        columns = [times_us, part.hplm, part.rows, part.tokens, part.deadline_us, part.level]
        of_rows = zip(*(column.tolist() for column in columns), strict=True)
        yield [
            (f"{time_us / 1e6:.6f}", names[hplm], length, _shown_ms(deadline_us), levels[level])
            for time_us, hplm, rows, tokens, deadline_us, level in of_rows
            for length in _lengths(rows, tokens)
        ]


def _shown_ms(deadline_us: int) -> str:
    return str(-(-deadline_us // 1000)) if deadline_us else ""


def _lengths(rows: int, tokens: int) -> list[int]:
    """Share tokens among rows; each has one at least."""
    whole, rest = divmod(tokens, max(rows, 1))
    return [max(1, whole + (row < rest)) for row in range(rows)]
