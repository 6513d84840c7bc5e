"""Figures on Triton's metrics endpoint: kept in Python, handed over every few seconds.

Each hand-over is a round trip to the server, so nothing is counted there per request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from backends.scheduling.rejection import Rejection

LOGGER = logging.getLogger(__name__)
INTERVAL_S = 2.0
LabelValues = tuple[str, ...]
LabelT = TypeVar("LabelT", bound=str)
Values = Callable[[], Mapping[LabelValues, float]]


class Family(Protocol):
    def report(self) -> None: ...


class Counters:
    """Counters by label values, raised to the `current` values; counters that it no longer names are dropped."""

    def __init__(self, pb_utils: Any, name: str, description: str, labels: Sequence[str], current: Values) -> None:
        kind = pb_utils.MetricFamily.COUNTER
        self._family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._labels = labels
        self._current = current
        self._counters: dict[LabelValues, Any] = {}
        self._reported: dict[LabelValues, float] = {}

    def report(self) -> None:
        current = self._current()
        for values, count in current.items():
            self._report_one(values, count)
        for values in self._reported.keys() - current.keys():
            del self._reported[values]
            self._counters.pop(values, None)

    def _report_one(self, values: LabelValues, count: float) -> None:
        reported = self._reported.get(values, 0.0)
        if count < reported:  # dropped and begun again since the last time
            reported = 0.0
        if count > reported:
            self._counter(values).increment(count - reported)
        self._reported[values] = count

    def _counter(self, values: LabelValues) -> Any:
        if values not in self._counters:
            labels = dict(zip(self._labels, values, strict=True))
            self._counters[values] = self._family.Metric(labels=labels)
        return self._counters[values]


class Gauge:
    """A gauge of the `current` value in each process."""

    def __init__(self, pb_utils: Any, name: str, description: str, process: str, current: Callable[[], float]) -> None:
        kind = pb_utils.MetricFamily.GAUGE
        self._family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._metric = self._family.Metric(labels={"process": process})
        self._current = current

    def report(self) -> None:
        self._metric.set(self._current())


class Info:
    """The settings in force in a process, as labels of a gauge that is always 1."""

    def __init__(self, pb_utils: Any, name: str, description: str, labels: Mapping[str, str]) -> None:
        kind = pb_utils.MetricFamily.GAUGE
        self._family = pb_utils.MetricFamily(name=name, description=description, kind=kind)
        self._metric = self._family.Metric(labels=dict(labels))
        self.report()

    def report(self) -> None:
        self._metric.set(1)


class Reporter:
    """Reports until it is closed, on a thread of this name."""

    def __init__(self, families: Sequence[Family], name: str) -> None:
        self._families = families
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            for family in self._families:
                try:
                    family.report()
                except Exception as error:  # the next report says what this one did not
                    LOGGER.error("metrics not reported: %s", error, exc_info=error)


def by_label(current: Callable[[], Mapping[LabelT, float]]) -> Values:
    """Counts by the value of the one label that a family has."""
    return lambda: {(value,): count for value, count in current().items()}


def refusals(pb_utils: Any, current: Callable[[], Mapping[Rejection, int]]) -> Counters:
    """Make the counter of rejected requests by reason; all processes add to the same family."""
    return Counters(
        pb_utils, "hplm_refusals_total", "Requests that were refused, by reason", ("reason",), by_label(current)
    )


def registry_age(pb_utils: Any, process: str, current: Callable[[], float]) -> Gauge:
    """Make the gauge of the age of what a process has read of the registry, of either model."""
    return Gauge(pb_utils, "hplm_registry_age_seconds", "Seconds since the registry was read", process, current)


def waiting_rows(pb_utils: Any, process: str, current: Callable[[], float]) -> Gauge:
    """Make the gauge of the rows that wait in a process, of either model."""
    return Gauge(pb_utils, "hplm_waiting_rows", "Rows that wait", process, current)
