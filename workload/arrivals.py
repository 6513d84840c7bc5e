"""Arrival times of requests: processes that know neither a clock nor a server.

A process draws all times of a load at once, so a load is open-loop by construction: the server's answer to one request
moves no other request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workload.checks import check_duration, check_load, check_positive
from workload.errors import WorkloadError

Times = NDArray[np.float64]
Indices = NDArray[np.int64]

_LEAST_CV, _MOST_CV = 0.001, 100.0
"""Below, all gaps are practically equal; above, practically all gaps are 0."""
_MOST_STAYS = 10_000_000


class Arrivals(Protocol):
    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        """Ascending seconds in [0, duration_s)."""
        ...


@dataclass(frozen=True)
class DeterministicArrivals:
    """One request every 1 / rate seconds, the first at 0."""

    rate_per_s: float

    def __post_init__(self) -> None:
        check_positive(rate_per_s=self.rate_per_s)

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        check_duration(duration_s)
        check_load(self.rate_per_s * duration_s)
        times = np.arange(int(duration_s * self.rate_per_s) + 1) / self.rate_per_s
        return times[times < duration_s]


@dataclass(frozen=True)
class PoissonArrivals:
    """Requests independent of each other: exponential gaps."""

    rate_per_s: float

    def __post_init__(self) -> None:
        check_positive(rate_per_s=self.rate_per_s)

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        gap_s = 1 / self.rate_per_s
        return _renewals(duration_s, gap_s, lambda count: rng.exponential(gap_s, count))


@dataclass(frozen=True)
class GammaArrivals:
    """Independent gaps with a coefficient of variation: below 1 more even than Poisson, above 1 burstier."""

    rate_per_s: float
    cv: float

    def __post_init__(self) -> None:
        check_positive(rate_per_s=self.rate_per_s, cv=self.cv)
        if not _LEAST_CV <= self.cv <= _MOST_CV:
            raise WorkloadError(f"cv must be {_LEAST_CV:g} to {_MOST_CV:g}, not {self.cv:g}")

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        variance = self.cv**2
        gap_s = 1 / self.rate_per_s
        return _renewals(duration_s, gap_s, lambda count: rng.gamma(1 / variance, gap_s * variance, count))


@dataclass(frozen=True)
class MarkovModulatedArrivals:
    """Poisson arrivals whose rate jumps between states; a stay in a state is exponential, with the state's own mean.

    The next state is any other one, all equally likely; the first is drawn from the long-run distribution. A rate of 0
    is a pause.
    """

    rates_per_s: tuple[float, ...]
    mean_stays_s: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.rates_per_s) < 2 or len(self.rates_per_s) != len(self.mean_stays_s):
            raise WorkloadError("two or more states are needed, each with a rate and a mean stay")
        if min(self.rates_per_s) < 0 or not np.isfinite(self.rates_per_s).all() or max(self.rates_per_s) == 0:
            raise WorkloadError(f"rates must be 0 or more and not all 0, not {self.rates_per_s}")
        for stay_s in self.mean_stays_s:
            check_positive(mean_stay_s=stay_s)

    @classmethod
    def bursts(cls, rate_per_s: float, ratio: float, mean_stay_s: float) -> MarkovModulatedArrivals:
        """Two states of equal stays around a mean rate, the busy one at `ratio` times the calm one's rate."""
        check_positive(rate_per_s=rate_per_s, ratio=ratio)
        calm = 2 * rate_per_s / (1 + ratio)
        return cls((calm, ratio * calm), (mean_stay_s, mean_stay_s))

    @property
    def mean_rate_per_s(self) -> float:
        return float(np.average(self.rates_per_s, weights=self.mean_stays_s))

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        check_duration(duration_s)
        check_load(max(self.rates_per_s) * duration_s)
        if duration_s / min(self.mean_stays_s) > _MOST_STAYS:
            raise WorkloadError(f"stays of {min(self.mean_stays_s):g} s are too short for such a load")
        states, starts_s, ends_s = self._stays(duration_s, rng)
        counts = rng.poisson(np.asarray(self.rates_per_s)[states] * (ends_s - starts_s))
        # Given its count, the times of a Poisson process are independent and uniform.
        fractions = rng.random(int(counts.sum()))
        times = np.repeat(starts_s, counts) + fractions * np.repeat(ends_s - starts_s, counts)
        times.sort()
        return _within(times, times, duration_s)

    def _stays(self, duration_s: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], Times, Times]:
        """Draw the states in order, and when each begins and ends."""
        means_s = np.asarray(self.mean_stays_s)
        state = int(rng.choice(len(means_s), p=means_s / means_s.sum()))
        states, starts_s, now_s = [], [], 0.0
        while now_s < duration_s:
            states.append(state)
            starts_s.append(now_s)
            now_s += rng.exponential(means_s[state])
            state = (state + 1 + int(rng.integers(len(means_s) - 1))) % len(means_s)
        starts = np.asarray(starts_s, np.float64)
        return np.asarray(states, np.int64), starts, np.append(starts[1:], duration_s)[: len(starts)]


@dataclass(frozen=True, eq=False)
class TraceArrivals:
    """The times of a trace, its first request at 0; after its last request nothing comes.

    Args:
        trace_times_s: Ascending; equal times are simultaneous requests.
        speed: 2 plays an hour in half an hour: twice the rate, bursts half as long.
        rate_scale: 2 makes two requests of each, the second somewhere before the next one: twice the rate, bursts as
            long as they were. 0.5 drops each with probability one half.
    """

    trace_times_s: Times
    speed: float = 1.0
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive(speed=self.speed, rate_scale=self.rate_scale)
        if not len(self.trace_times_s):
            raise WorkloadError("a trace without requests cannot be replayed")
        if not np.isfinite(self.trace_times_s).all():
            raise WorkloadError("the times of a trace must be numbers")
        if (np.diff(self.trace_times_s) < 0).any():
            raise WorkloadError("the times of a trace must ascend")

    @classmethod
    def at_rate(cls, trace_times_s: Times, rate_per_s: float, speed: float = 1.0) -> TraceArrivals:
        """The trace scaled to a mean rate, at a given speed."""
        check_positive(rate_per_s=rate_per_s, speed=speed)
        if len(trace_times_s) < 2 or trace_times_s[-1] <= trace_times_s[0]:
            raise WorkloadError("a trace of one moment has no rate to scale")
        own_rate_per_s = speed * len(trace_times_s) / float(trace_times_s[-1] - trace_times_s[0])
        return cls(trace_times_s, speed, rate_per_s / own_rate_per_s)

    def times_s(self, duration_s: float, rng: np.random.Generator) -> Times:
        return self.replay(duration_s, rng)[0]

    def replay(self, duration_s: float, rng: np.random.Generator) -> tuple[Times, Indices]:
        """Draw the times, and for each the index of its request in the trace, which keeps its tenant and length."""
        check_duration(duration_s)
        check_load(self.rate_scale * len(self.trace_times_s))
        times = (self.trace_times_s - self.trace_times_s[0]) / self.speed
        gaps = _within(np.diff(times, append=times[-1:]), times, duration_s)
        times = _within(times, times, duration_s)
        if self.rate_scale == 1.0:
            return times, np.arange(len(times))
        whole = int(self.rate_scale)
        counts = whole + (rng.random(len(times)) < self.rate_scale - whole)
        return _with_copies(times, gaps, counts, duration_s, rng)


def _with_copies(
    times: Times, gaps: Times, counts: NDArray[np.int64], duration_s: float, rng: np.random.Generator
) -> tuple[Times, Indices]:
    """Copy requests: the first copy keeps its time, the others are uniform in the gap up to the next request."""
    origins = np.repeat(np.arange(len(times)), counts)
    is_copy = np.diff(origins, prepend=-1) == 0
    spread = times[origins] + rng.random(len(origins)) * is_copy * gaps[origins]
    order = np.argsort(spread, kind="stable")
    order = order[spread[order] < duration_s]
    return spread[order], origins[order]


def _renewals(duration_s: float, mean_gap_s: float, draw_gaps: Callable[[int], Times]) -> Times:
    """Sum independent gaps, drawn in blocks until they cover the duration."""
    check_duration(duration_s)
    check_load(duration_s / mean_gap_s)
    block = int(duration_s / mean_gap_s * 1.02) + 64
    blocks: list[Times] = []
    now_s = 0.0
    while now_s < duration_s:
        blocks.append(now_s + np.cumsum(draw_gaps(block)))
        now_s = float(blocks[-1][-1])
        block = int(max(0.0, duration_s - now_s) / mean_gap_s * 1.1) + 64
    times = np.concatenate(blocks) if blocks else np.zeros(0)
    return _within(times, times, duration_s)


def _within(values: Times, times: Times, duration_s: float) -> Times:
    """Keep the values whose times are before the end."""
    return values[: np.searchsorted(times, duration_s)]
