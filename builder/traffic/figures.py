"""Figures of traffic: rates, burstiness, lengths, deadlines, shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from backends.moments import shown_moment
from backends.traffic.records import ACCEPTED, FAILED
from builder.traffic.by import By
from builder.traffic.traffic import Column, Int64, Requests, Traffic

_US = 1e6


def summary(traffic: Traffic) -> dict[str, Any]:
    """Compute the figures of all traffic."""
    requests = traffic.requests
    times_us = first_times_us(requests)
    counts = np.bincount(requests.outcome[_firsts(requests)], minlength=len(traffic.outcomes))
    outcomes = {name: int(count) for name, count in zip(traffic.outcomes, counts, strict=True) if count}
    levels = np.bincount(requests.level[_firsts(requests)], minlength=len(traffic.levels))
    spans_us = traffic.spans_us
    return {
        "from": shown_moment(spans_us[0, 0] / _US) if len(spans_us) else None,
        "until": shown_moment(spans_us[-1, 1] / _US) if len(spans_us) else None,
        "recorded_s": round(traffic.recorded_s, 3),
        "files": traffic.num_files,
        "lost": traffic.lost,
        **_load(requests, times_us, traffic),
        "accepted": outcomes.pop(ACCEPTED, 0),
        "failed": outcomes.pop(FAILED, 0),
        "rejected": outcomes,
        "tokens_per_row": _distribution(requests.tokens / np.maximum(requests.rows, 1), requests.rows),
        "deadline_ms": _deadlines(requests),
        "without_deadline": int(np.count_nonzero(requests.deadline_us[_firsts(requests)] == 0)),
        "levels": {name: int(count) for name, count in zip(traffic.levels, levels, strict=True) if count},
    }


def groups(traffic: Traffic, by: By) -> list[dict[str, Any]]:
    """Compute the figures of each tenant, family or hPLM, those with most rows first."""
    requests = traffic.requests
    names: dict[str, int] = {}
    group_of = np.array([names.setdefault(by.of(hplm), len(names)) for hplm in traffic.hplms], np.int64)
    group = group_of[requests.hplm] if len(requests) else np.zeros(0, np.int64)
    order = np.argsort(group, kind="stable")
    ends = np.searchsorted(group[order], np.arange(len(names) + 1))
    all_rows = int(requests.rows.sum())
    accepted = traffic.outcomes.index(ACCEPTED) if ACCEPTED in traffic.outcomes else None
    rows = []
    for name, number in names.items():
        own = requests.where(order[ends[number] : ends[number + 1]])
        if not len(own):
            continue
        deadlines = _deadlines(own)
        load = _load(own, first_times_us(own), traffic)
        figures = {
            by.value: name,
            **load,
            "share": round(load["rows"] / all_rows, 6) if all_rows else 0.0,
            "tokens_mean": round(load["tokens"] / max(load["rows"], 1), 2),
            "deadline_ms": None if deadlines is None else deadlines["p50"],
            "not_accepted": int(np.count_nonzero(own.outcome[_firsts(own)] != accepted)),
        }
        rows.append(figures)
    return sorted(rows, key=lambda row: (-row["rows"], row[by.value]))


def _load(requests: Requests, times_us: Int64, traffic: Traffic) -> dict[str, Any]:
    recorded_s = traffic.recorded_s
    cv = variation(times_us, traffic.spans_us)
    return {
        "requests": len(times_us),
        "rows": int(requests.rows.sum()),
        "tokens": int(requests.tokens.sum()),
        "rate_per_s": round(len(times_us) / recorded_s, 4) if recorded_s else None,
        "peak_per_s": _busiest_second(times_us),
        "cv": None if cv is None else round(cv, 3),
    }


def _firsts(requests: Requests) -> npt.NDArray[np.bool_]:
    """Say which records are the first of their request here."""
    firsts: npt.NDArray[np.bool_] = np.diff(requests.request, prepend=-1) != 0
    return firsts


def first_times_us(requests: Requests) -> Int64:
    """Return when each request arrived, once a request."""
    return requests.arrived_us[_firsts(requests)]


def variation(times_us: Int64, spans_us: Int64) -> float | None:
    """Return the coefficient of variation of gaps: 1 where requests are independent, more in bursts.

    A gap in which nothing was recorded is none. None where there are fewer than two gaps.
    """
    spans = np.searchsorted(spans_us[:, 0], times_us, side="right")
    gaps_us = np.diff(times_us)[np.diff(spans) == 0]
    if len(gaps_us) < 2 or not gaps_us.any():
        return None
    return float(gaps_us.std() / gaps_us.mean())


def _busiest_second(times_us: Int64) -> int:
    if not len(times_us):
        return 0
    return int(np.unique(times_us // int(_US), return_counts=True)[1].max())


def _deadlines(requests: Requests) -> dict[str, float] | None:
    firsts = _firsts(requests)
    deadlines_us = requests.deadline_us[firsts]
    deadlines_us = deadlines_us[deadlines_us > 0]
    return _distribution(deadlines_us / 1e3, np.ones(len(deadlines_us), np.int64))


def _distribution(values: npt.NDArray[np.float64], weights: Column) -> dict[str, float] | None:
    """Mean, percentiles and maximum of values that each occur `weights` times; None where none does."""
    total = int(weights.sum())
    if not total:
        return None
    order = np.argsort(values, kind="stable")
    ordered, up_to = values[order], np.cumsum(weights[order])
    percentiles = {
        f"p{percent}": float(ordered[np.searchsorted(up_to, percent / 100 * total)]) for percent in (5, 50, 95, 99)
    }
    mean = float(values @ weights / total)
    return {name: round(value, 2) for name, value in {"mean": mean, **percentiles, "max": float(ordered[-1])}.items()}
