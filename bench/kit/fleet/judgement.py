"""What the measurements of a fleet come to: rows a second for each core left, and how long a fault was felt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from loadtest.outcome import Kind
from loadtest.requests import Requests

_BACK_S = 1.0
"""For so long requests must be on time as before."""
_BACK_POINTS = 0.02
_OF_GATEWAY = "upstream"
"""In each error that Envoy itself answers with; a rejection of ours never says it."""

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rate:
    """Rows a second, and what clients and gateway took of the machine meanwhile.

    Attributes:
        cores: Those that the servers may use.
        machine_cores: All, which clients and gateway use too.
        others_cores: Number of cores that clients and gateway kept busy.
    """

    rows_per_s: float
    cores: float
    machine_cores: float
    others_cores: float

    @property
    def cores_left(self) -> float:
        return min(self.cores, self.machine_cores - self.others_cores)

    @property
    def per_core(self) -> float:
        return self.rows_per_s / self.cores_left


def linearity(one: Sequence[Rate], fleet: Sequence[Rate]) -> float:
    """The rows for each core left of a fleet, over those of one server; the median of measurements in turns."""
    return median(all_.per_core / single.per_core for single, all_ in zip(one, fleet, strict=True))


def failed(requests: Requests) -> Bools:
    """Requests that got neither an answer nor a rejection by a server.

    Shape: [requests]
    """
    by_gateway = np.array([_OF_GATEWAY in reason for reason in requests.reasons.tolist()], np.bool_)
    return np.equal(requests.kinds, str(Kind.FAILED)) | by_gateway


@dataclass(frozen=True)
class Fault:
    """Requests around a fault; all times in seconds from the start of the load."""

    requests: Requests
    at_s: float

    @property
    def num_failed(self) -> int:
        return self.failures.total()

    @property
    def failures(self) -> Counter[str]:
        """Why they failed."""
        return Counter(self.requests.reasons[failed(self.requests)].tolist())

    @property
    def unanswered(self) -> Counter[str]:
        """Why requests were not answered, rejections too."""
        return Counter(reason for reason in self.requests.reasons.tolist() if reason)

    @property
    def before(self) -> float:
        """The share on time of what was planned well before the fault, so that none of it can have met it."""
        return self._share(0.0, self.at_s - _BACK_S)

    @property
    def recovery_s(self) -> float:
        """Time from the fault until requests are on time as before, second by second up to the end; or infinite."""
        planned_s = self.requests.scheduled_s
        last_s = float(planned_s.max(initial=0.0)) - _BACK_S
        begins_s = [self.at_s, *planned_s[(planned_s > self.at_s) & (planned_s <= last_s)].tolist()]
        least = self.before - _BACK_POINTS
        late = [number for number, begin_s in enumerate(begins_s) if self._share(begin_s, begin_s + _BACK_S) < least]
        if not late:
            return 0.0
        return float(begins_s[late[-1] + 1] - self.at_s) if late[-1] + 1 < len(begins_s) else float("inf")

    @property
    def since(self) -> float:
        """The share on time of all that was planned after the fault."""
        return self._share(self.at_s, float("inf"))

    def _share(self, begin_s: float, end_s: float) -> float:
        planned_s = self.requests.scheduled_s
        chosen = self.requests.in_time[(planned_s >= begin_s) & (planned_s < end_s)]
        return float(chosen.mean()) if len(chosen) else 1.0


def rates_over_time(times_s: Floats, end_s: float, bin_s: float) -> Floats:
    """Return events a second in equal parts of the time from 0 on.

    Shape: [events] -> [bins]
    """
    edges = np.arange(0.0, end_s + bin_s / 2, bin_s)
    counts, _ = np.histogram(times_s, edges)
    return counts / bin_s


def rates_of_counts(samples_s: Floats, counts: Floats, centres_s: Floats) -> Floats:
    """Return by how much a counter grew a second around some moments, from samples of it; it may begin anew.

    Shape: samples_s, counts [samples]; centres_s [bins] -> [bins]
    """
    grown = np.maximum(np.diff(counts), 0.0)
    rates = grown / np.maximum(np.diff(samples_s), 1e-9)
    middles = (samples_s[1:] + samples_s[:-1]) / 2
    return np.interp(centres_s, middles, rates)
