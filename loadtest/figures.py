"""The numbers of a run, and the curves that its pictures show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.levels import FULL, LADDER
from loadtest.outcome import Kind
from loadtest.requests import Requests

Column = NDArray[np.float64]
PERCENTILES = (50, 90, 95, 99, 99.9)
DEFAULT_LATENESS_MS = 20.0
MOST_UNSENT = 0.5
"""Part of the requests that may meet their deadlines before they are sent, in a run that is valid."""
_OF_LOAD = ("UNAVAILABLE:", "TIMEOUT:", "UNSENT:")
"""Reasons that a load explains: there was no time or no room."""
_MOST_BINS = 60
_SHORTEST_BIN_S = 0.5
_SHORTEST_WINDOW_S = 1.0


@dataclass(frozen=True, eq=False)
class Planned:
    """The requests that were due until the run ended: times in seconds and whose they were. Shape: [planned] each."""

    times_s: Column
    hplms: NDArray[np.str_]

    @property
    def tenants(self) -> NDArray[np.str_]:
        return tenants_of(self.hplms)


@dataclass(frozen=True, eq=False)
class Overtime:
    """A run in bins of its scheduled time. Shape: [bins]; NaN where there is nothing to compute a share of.

    `below_full` is of the answers of ladders, `accuracy` of those whose right label is known.
    """

    middles_s: Column
    offered_per_s: Column
    answered_per_s: Column
    rejected_per_s: Column
    attainment: Column
    below_full: Column
    accuracy: Column


def summary(
    requests: Requests, planned: Planned, lateness_limit_ms: float, client_cpu_s: float | None = None
) -> dict[str, Any]:
    """Compute every number of a report. Attainment is the share of all planned requests that were answered in time.

    Rates count the answers that came while the load lasted: those that come afterwards say nothing about the rate.
    """
    answered, in_time = requests.answered, requests.in_time
    window_s = _window_s(planned)
    in_window = requests.done_s <= window_s
    lateness_ms = 1000 * requests.lag_s
    return {
        "planned": len(planned.times_s),
        "answered": int(answered.sum()),
        "in_time": int(in_time.sum()),
        "late": int((answered & ~in_time).sum()),
        "rejected": int((requests.kinds == Kind.REJECTED).sum()),
        "unsent": int((requests.kinds == Kind.UNSENT).sum()),
        "failed": int((requests.kinds == Kind.FAILED).sum()),
        "unfinished": len(planned.times_s) - len(requests),
        "duration_s": _duration_s(planned),
        "offered_per_s": len(planned.times_s) / window_s,
        "answered_per_s": float((answered & in_window).sum()) / window_s,
        "in_time_per_s": float((in_time & in_window).sum()) / window_s,
        "attainment": _share(in_time.sum(), len(planned.times_s)),
        "answered_in_time": _share(in_time.sum(), answered.sum()),
        "utility": float((1 / requests.tokens[in_time]).sum()),
        "latency_ms": distribution(1000 * requests.latency_s[answered]),
        "latency_from_sending_ms": distribution(1000 * (requests.done_s - requests.sent_s)[answered]),
        "rejection_latency_ms": distribution(1000 * requests.latency_s[requests.kinds == Kind.REJECTED]),
        "fairness": fairness(requests, planned),
        "reasons": dict(Counter(requests.reasons[~answered].tolist()).most_common()),
        "sending": {
            "lateness_ms": distribution(lateness_ms),
            "limit_ms": lateness_limit_ms,
            "most_in_flight": most_in_flight(requests),
            "client_cores": None if client_cpu_s is None else client_cpu_s / _end_s(requests, planned),
            "valid": _is_valid(requests, lateness_ms, lateness_limit_ms),
        },
    }


def _is_valid(requests: Requests, lateness_ms: Column, limit_ms: float) -> bool:
    """Tell whether a run says something about the server: hardly any request was sent late, and most were sent."""
    if not len(requests):
        return False
    unsent = float((requests.kinds == Kind.UNSENT).mean())
    return unsent <= MOST_UNSENT and float(np.percentile(lateness_ms, 99)) <= limit_ms


def errors(summary: Mapping[str, Any]) -> dict[str, int]:
    """Count failures by reason, the most frequent first; that there was no time or no room is no failure."""
    return {why: count for why, count in summary["reasons"].items() if not why.startswith(_OF_LOAD)}


def distribution(values: Column) -> dict[str, float] | None:
    """Mean, percentiles (linear between neighbours) and maximum; None of nothing."""
    if not len(values):
        return None
    percentiles = np.percentile(values, PERCENTILES)
    named = {f"p{percent:g}": float(value) for percent, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": float(values.mean()), **named, "max": float(values.max())}


def attainment_by_tenant(requests: Requests, planned: Planned) -> dict[str, float]:
    """Compute each tenant's share of planned requests that were answered in time."""
    offered = Counter(planned.tenants.tolist())
    served = Counter(tenants_of(requests.hplms[requests.in_time]).tolist())
    return {tenant: served[tenant] / count for tenant, count in sorted(offered.items())}


def fairness(requests: Requests, planned: Planned) -> dict[str, Any] | None:
    """Compute how evenly tenants are served, by their attainments.

    Jain's index of them is 1 where all are equal and 1 / tenants where one gets everything.
    """
    attainment = np.array(list(attainment_by_tenant(requests, planned).values()))
    if not len(attainment):
        return None
    squares = float((attainment**2).sum())
    return {
        "tenants": len(attainment),
        "jain": float(attainment.sum()) ** 2 / (len(attainment) * squares) if squares else None,
        "lowest": float(attainment.min()),
        "median": float(np.median(attainment)),
        "highest": float(attainment.max()),
    }


def most_in_flight(requests: Requests) -> int:
    """The most requests that were under way at once."""
    changes = np.concatenate([np.ones(len(requests)), -np.ones(len(requests))])
    times = np.concatenate([requests.sent_s, requests.done_s])
    # Where one ends as another begins, the beginning counts first.
    order = np.lexsort((-changes, times))
    return int(np.cumsum(changes[order]).max(initial=0))


def over_time(requests: Requests, planned: Planned) -> Overtime:
    """Offered and in-time requests by when they were to be sent, answers and rejections by when they came."""
    end_s = _end_s(requests, planned)
    edges = np.linspace(0, end_s, max(1, min(_MOST_BINS, int(end_s / _SHORTEST_BIN_S))) + 1)
    width_s = float(edges[1] - edges[0])

    def count(times: Column) -> Column:
        return np.histogram(times, edges)[0].astype(np.float64)

    def share(part: NDArray[np.bool_], whole: Column) -> Column:
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(whole > 0, count(requests.scheduled_s[part]) / whole, np.nan)

    offered = count(planned.times_s)
    laddered = requests.answered & np.isin(requests.levels, LADDER)
    return Overtime(
        middles_s=(edges[1:] + edges[:-1]) / 2,
        offered_per_s=offered / width_s,
        answered_per_s=count(requests.done_s[requests.answered]) / width_s,
        rejected_per_s=count(requests.done_s[requests.kinds == Kind.REJECTED]) / width_s,
        attainment=share(requests.in_time, offered),
        below_full=share(laddered & (requests.levels != FULL), count(requests.scheduled_s[laddered])),
        accuracy=share(requests.right == 1, count(requests.scheduled_s[requests.judged])),
    )


def tenants_of(hplms: NDArray[np.str_]) -> NDArray[np.str_]:
    """The part of an ID before its slash."""
    distinct, index_of = np.unique(hplms, return_inverse=True)
    return np.array([hplm.partition("/")[0] for hplm in distinct.tolist()], np.str_)[index_of]


def batch_shares(statistics: Mapping[str, Any] | None) -> dict[int, float] | None:
    """Compute the share of all rows that Triton batches of each number of rows have."""
    if not statistics or not statistics.get("batches"):
        return None
    rows = {int(size): int(size) * int(count) for size, count in statistics["batches"].items()}
    total = sum(rows.values())
    return {size: count / total for size, count in sorted(rows.items())} if total else None


def _end_s(requests: Requests, planned: Planned) -> float:
    """Return when the last request was due or had its outcome."""
    return max(_duration_s(planned), float(requests.done_s.max(initial=0.0)))


def _duration_s(planned: Planned) -> float:
    """Return the time from second 0 to the last request that was due, never 0."""
    return max(float(planned.times_s.max(initial=0.0)), 1e-3) if len(planned.times_s) else 1e-3


def _window_s(planned: Planned) -> float:
    """Return the load's time, for rates: the last request has as much of it as any other, and time to be answered."""
    count = len(planned.times_s)
    return max(_duration_s(planned) * count / max(1, count - 1), _SHORTEST_WINDOW_S)


def _share(part: int | np.integer[Any], whole: int | np.integer[Any]) -> float | None:
    return float(part) / float(whole) if whole else None
