"""A run hPLM by hPLM and tenant by tenant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.figures import Planned, tenants_of
from loadtest.outcome import Kind
from loadtest.requests import Requests


@dataclass(frozen=True)
class Line:
    """The figures of one hPLM or tenant; latencies are of answered requests, None where there is none."""

    name: str
    planned: int
    in_time: int
    rejected: int
    failed: int
    attainment: float
    p50_ms: float | None
    p99_ms: float | None


def by_hplm(requests: Requests, planned: Planned) -> list[dict[str, Any]]:
    return _lines(requests, requests.hplms, planned.hplms)


def by_tenant(requests: Requests, planned: Planned) -> list[dict[str, Any]]:
    return _lines(requests, tenants_of(requests.hplms), planned.tenants)


def _lines(requests: Requests, ended: NDArray[np.str_], planned: NDArray[np.str_]) -> list[dict[str, Any]]:
    """List the lines with the lowest attainment first."""
    names, counts = np.unique(planned, return_counts=True)
    order = np.argsort(ended, kind="stable")
    starts = np.searchsorted(ended[order], names, side="left")
    ends = np.searchsorted(ended[order], names, side="right")
    lines = [
        _line(requests, order[start:end], str(name), int(count))
        for name, count, start, end in zip(names, counts, starts, ends, strict=True)
    ]
    return [asdict(line) for line in sorted(lines, key=lambda line: (line.attainment, line.name))]


def _line(requests: Requests, rows: NDArray[np.int64], name: str, planned: int) -> Line:
    kinds, in_time = requests.kinds[rows], int(requests.in_time[rows].sum())
    latency_ms = 1000 * requests.latency_s[rows][requests.answered[rows]]
    p50_ms, p99_ms = np.percentile(latency_ms, (50, 99)).tolist() if len(latency_ms) else (None, None)
    rejected = int(np.isin(kinds, (str(Kind.REJECTED), str(Kind.UNSENT))).sum())
    return Line(name, planned, in_time, rejected, int((kinds == Kind.FAILED).sum()), in_time / planned, p50_ms, p99_ms)
