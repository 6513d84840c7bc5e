"""Traffic that can be had at any rate, once to plan for and once to judge by: Gamma arrivals, and a recorded trace.

Requests that a placement was made for never judge it.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from backends.errors import InvalidArgumentError
from bench.kit.placing.loads import gamma_traffic, shares
from builder.placement.planner.traffic import Int64, Traffic

_HELD_OUT = 1_000_003
"""Added to a seed for the traffic that judges."""
_DAY_S = 86_400
_COLUMNS = ("time", "base_model")


class LoadByRate(Protocol):
    """Requests for some roots, each of use for so long after it has come."""

    @property
    def num_roots(self) -> int: ...

    @property
    def labels(self) -> Mapping[str, Any]:
        """What tells it from others in a table."""

    def traffic(self, rate_per_s: float, patience_us: int, is_judge: bool) -> Traffic: ...


@dataclass(frozen=True)
class GammaLoad:
    """Independent Gamma arrivals for each root, with shares by rank to the power of the exponent."""

    num_roots: int
    exponent: float
    cv: float
    requests: int
    seed: int

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"load": "Gamma", "roots": self.num_roots, "exponent": self.exponent, "cv": self.cv}

    def traffic(self, rate_per_s: float, patience_us: int, is_judge: bool) -> Traffic:
        rates = [rate_per_s * share for share in shares(self.num_roots, self.exponent)]
        seed = self.seed + (_HELD_OUT if is_judge else 0)
        return gamma_traffic(rates, self.cv, self.requests / rate_per_s, [patience_us] * self.num_roots, seed)


@dataclass(frozen=True, eq=False)
class RecordedTrace:
    """When which base model was asked, the busiest first.

    Shape:
        arrived_us, models: `[requests]`.
    """

    arrived_us: Int64
    models: Int64

    @classmethod
    def read(cls, path: Path) -> RecordedTrace:
        """Read a CSV with the columns `time`, dates with times, and `base_model`.

        Raises:
            InvalidArgumentError: It lacks a column, or has no requests or times that are none.
        """
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := set(_COLUMNS) - set(reader.fieldnames or ()):
                raise InvalidArgumentError(f"{path} has no column {min(missing)}")
            lines = [(line["time"], line["base_model"]) for line in reader]
        try:
            times_s = np.array([datetime.fromisoformat(time).timestamp() for time, _ in lines])
        except ValueError as error:
            raise InvalidArgumentError(f"{path}: {error}") from error
        if not lines:
            raise InvalidArgumentError(f"{path} has no requests")
        ranks = {name: rank for rank, (name, _) in enumerate(Counter(name for _, name in lines).most_common())}
        models = np.array([ranks[name] for _, name in lines], np.int64)
        order = np.argsort(times_s, kind="stable")
        return cls((1e6 * (times_s[order] - times_s.min())).astype(np.int64), models[order])

    def of_busiest(self, count: int) -> RecordedTrace:
        kept = self.models < count
        return RecordedTrace(self.arrived_us[kept], self.models[kept])

    def days(self, first: int) -> RecordedTrace:
        """Return every second day, one after the other, from the first or second one on."""
        days, of_day = np.divmod(self.arrived_us, 1_000_000 * _DAY_S)
        kept = days % 2 == first
        return RecordedTrace((days[kept] // 2) * 1_000_000 * _DAY_S + of_day[kept], self.models[kept])


@dataclass(frozen=True, eq=False)
class TraceLoad:
    """A trace played faster: every second day is planned for, the others judge.

    Attributes:
        trace: Of the roots that are placed.
    """

    trace: RecordedTrace
    num_roots: int

    @property
    def labels(self) -> Mapping[str, Any]:
        return {"load": "trace", "roots": self.num_roots, "exponent": None, "cv": None}

    def traffic(self, rate_per_s: float, patience_us: int, is_judge: bool) -> Traffic:
        part = self._parts[is_judge]
        arrived_us = (part.arrived_us * (self._recorded_per_s / rate_per_s)).astype(np.int64)
        return Traffic(arrived_us, part.models, arrived_us + patience_us)

    @cached_property
    def _parts(self) -> tuple[RecordedTrace, RecordedTrace]:
        return self.trace.days(0), self.trace.days(1)

    @cached_property
    def _recorded_per_s(self) -> float:
        return len(self.trace.models) / (float(self.trace.arrived_us[-1]) / 1e6)
