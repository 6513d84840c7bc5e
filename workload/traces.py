"""Traces of real traffic: requests with their times, tokens and tenants.

A trace is a CSV with a header or JSONL, its columns found by their names:

    when      `time_s` seconds · `timestamp` milliseconds (JSONL) · `TIMESTAMP`, `time` dates with times, UTC by default
    tokens    `tokens` · `ContextTokens` · `input_length`          in every line or in none
    tenant    `hplm` · `tenant` · `group`                          in every line or in none
    deadline  `deadline_ms`, empty where a request has none        may be missing
    level     `level`, empty where a request names none            may be missing

Times count from the first request and must not decrease; the error names the line. Equal times are simultaneous
requests, in the order of the file. A file is read line by line and kept as 8 bytes per column and request.
"""

from __future__ import annotations

import csv
import json
import math
import reprlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from workload.checks import MOST_TOKENS
from workload.deadlines import LONGEST_DEADLINE_MS
from workload.errors import WorkloadError

_TOKENS = ("tokens", "ContextTokens", "input_length")
_TENANTS = ("hplm", "tenant", "group")
_DEADLINE, _LEVEL = "deadline_ms", "level"

Line = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace as columns; None for a column that it does not have.

    `tenants` are indices into `tenant_names`; `deadlines_ms` count from the arrival, NaN where a request has none.
    `levels` are indices into `level_names`, where the empty name says that a request names none.

    Shape: [requests] each.
    """

    times_s: NDArray[np.float64]
    tokens: NDArray[np.int64] | None
    tenants: NDArray[np.int64] | None
    tenant_names: tuple[str, ...]
    deadlines_ms: NDArray[np.float64] | None = None
    levels: NDArray[np.int64] | None = None
    level_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.times_s)

    @property
    def duration_s(self) -> float:
        return float(self.times_s[-1])


@dataclass(frozen=True)
class TracedRequest:
    """One line of a trace; the time counts from the first."""

    time_s: float
    tokens: int | None
    tenant: str | None
    deadline_ms: float | None = None
    level: str | None = None


def read_trace(path: Path) -> Trace:
    """Read a whole trace.

    Raises:
        WorkloadError: The file cannot be read or has no requests, or a line cannot be used; the message names it.
    """
    times_s, tokens, tenants, deadlines_ms, levels = array("d"), array("q"), array("q"), array("d"), array("q")
    indices: dict[str, int] = {}
    level_indices: dict[str, int] = {}
    for request in stream_trace(path):
        times_s.append(request.time_s)
        if request.tokens is not None:
            tokens.append(request.tokens)
        if request.tenant is not None:
            tenants.append(indices.setdefault(request.tenant, len(indices)))
        deadlines_ms.append(math.nan if request.deadline_ms is None else request.deadline_ms)
        levels.append(level_indices.setdefault(request.level or "", len(level_indices)))
    if not times_s:
        raise WorkloadError(f"{path}: no requests")
    return Trace(
        np.frombuffer(times_s, np.float64),
        np.frombuffer(tokens, np.int64) if tokens else None,
        np.frombuffer(tenants, np.int64) if tenants else None,
        tuple(indices),
        deadlines if np.isfinite(deadlines := np.frombuffer(deadlines_ms, np.float64)).any() else None,
        np.frombuffer(levels, np.int64) if any(level_indices) else None,
        tuple(level_indices) if any(level_indices) else (),
    )


def stream_trace(path: Path) -> Iterator[TracedRequest]:
    """Yield the requests of a trace, one after the other."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from _requests(file, path)
    except OSError as error:
        raise WorkloadError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not UTF-8 text") from error


def _requests(file: TextIO, path: Path) -> Iterator[TracedRequest]:
    read: _Columns | None = None
    last_s = 0.0
    for number, line in _lines(file, path):
        try:
            read = read or _Columns.of(line)
            request = read(line)
        except (KeyError, ValueError) as error:
            raise WorkloadError(f"{path}, line {number}: {_reason(error)}") from error
        if request.time_s < last_s:
            raise WorkloadError(
                f"{path}, line {number}: {request.time_s:g} s after the first request, but the line before it comes "
                f"{last_s:g} s after; sort the trace by its times"
            )
        last_s = request.time_s
        yield request


def _lines(file: TextIO, path: Path) -> Iterator[tuple[int, Line]]:
    if path.suffix == ".jsonl":
        for number, text in enumerate(file, start=1):
            if text.strip():
                yield number, _parsed(text, path, number)
        return
    reader = csv.DictReader(file)
    try:
        names = reader.fieldnames or ()
        if doubled := [name for name in (*_TIMES, *_TOKENS, *_TENANTS, _DEADLINE, _LEVEL) if names.count(name) > 1]:
            raise WorkloadError(f"{path}: more than one column is called {doubled[0]!r}")
        if names and not any(name in names for name in _TIMES):
            raise WorkloadError(f"{path}, line {reader.line_num}: {_NO_TIMES}")
        for line in reader:
            yield reader.line_num, line
    except csv.Error as error:
        raise WorkloadError(f"{path}, line {reader.line_num}: {error}") from error


def _parsed(text: str, path: Path, number: int) -> Line:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:  # of a number of thousands of digits too
        raise WorkloadError(f"{path}, line {number}: not JSON") from error
    if not isinstance(line, dict):
        raise WorkloadError(f"{path}, line {number}: not an object")
    return line


class _Columns:
    """The columns of times, tokens and tenants, fixed by a trace's first line, and the unit of times."""

    def __init__(self, time: str, seconds_of: Callable[[object], float], names: Line) -> None:
        self._time = time
        self._seconds_of = seconds_of
        self._start_s: float | None = None
        self._tokens = _first_of(_TOKENS, names)
        self._tenant = _first_of(_TENANTS, names)

    @classmethod
    def of(cls, line: Line) -> _Columns:
        for name, seconds_of in _TIMES.items():
            if name in line:
                return cls(name, seconds_of, line)
        raise ValueError(_NO_TIMES)

    def __call__(self, line: Line) -> TracedRequest:
        time_s = self._seconds_of(line[self._time])
        self._start_s = time_s if self._start_s is None else self._start_s
        return TracedRequest(
            time_s - self._start_s,
            self._tokens_of(line),
            self._tenant_of(line),
            _deadline_ms_of(line),
            _level_of(line),
        )

    def _tokens_of(self, line: Line) -> int | None:
        if self._tokens is None:
            _require_absent(_TOKENS, line)
            return None
        tokens = _number(line[self._tokens])
        if not 1 <= tokens <= MOST_TOKENS or tokens != int(tokens):
            raise ValueError(f"a request has 1 token or more, and {MOST_TOKENS:,} at most, not {tokens:g}")
        return int(tokens)

    def _tenant_of(self, line: Line) -> str | None:
        if self._tenant is None:
            _require_absent(_TENANTS, line)
            return None
        tenant = line[self._tenant]
        if tenant is None or tenant == "":
            raise ValueError("the tenant is missing")
        if not isinstance(tenant, (str, int, float)):
            raise ValueError(f"the tenant is {reprlib.repr(tenant)}, not a name")
        return str(tenant)


def _first_of(names: Sequence[str], line: Line) -> str | None:
    return next((name for name in names if name in line), None)


def _require_absent(names: Sequence[str], line: Line) -> None:
    """Raise ValueError where a line of JSONL has a column that the first line lacks."""
    if (name := _first_of(names, line)) is not None:
        raise ValueError(f"{name!r} is not in the first line; either every line has it or none")


def _deadline_ms_of(line: Line) -> float | None:
    deadline = line.get(_DEADLINE)
    if deadline is None or deadline == "":
        return None
    deadline_ms = _number(deadline)
    if not 0 < deadline_ms <= LONGEST_DEADLINE_MS:
        raise ValueError(f"a deadline is above 0 and {LONGEST_DEADLINE_MS} ms away at most, not {deadline_ms:g}")
    return deadline_ms


def _level_of(line: Line) -> str | None:
    level = line.get(_LEVEL)
    if level is not None and not isinstance(level, str):
        raise ValueError(f"the level is {reprlib.repr(level)}, not a name")
    return level or None


def _number(value: object) -> float:
    if value is None:
        raise ValueError("a number is missing")
    try:
        number = float(str(value)) if isinstance(value, (str, int, float)) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{reprlib.repr(value)} is no number")
    return number


def _milliseconds(value: object) -> float:
    return _number(value) / 1e3


def _date(value: object) -> float:
    """Seconds since 1970."""
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
    except ValueError as error:
        raise ValueError(f"{reprlib.repr(value)} is no date with a time") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


_TIMES: Mapping[str, Callable[[object], float]] = {
    "time_s": _number,
    "timestamp": _milliseconds,
    "TIMESTAMP": _date,
    "time": _date,
}


_NO_TIMES = f"no column says when; one of {', '.join(_TIMES)} must"


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else str(error)
