"""PLOT hits per level on Triton's metrics endpoint: counted in Python, handed over every few seconds.

Each hand-over is a round trip to the server, so nothing is counted there per request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from backends.plot.statistics import HitStatistics

INTERVAL_S = 2.0
_NAME = "hplm_plot_fragments_total"


class HitMetrics:
    """Brings a counter per level up to what `current` says; `pb_utils` is Triton's module."""

    def __init__(self, pb_utils: Any, current: Callable[[], HitStatistics]) -> None:
        self._family = pb_utils.MetricFamily(
            name=_NAME,
            description="Fragments looked up, by the level of the chain that answered",
            kind=pb_utils.MetricFamily.COUNTER,
        )
        self._current = current
        self._counters: dict[str, Any] = {}
        self._reported: dict[str, int] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._report, name="hit-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _report(self) -> None:
        while not self._stopping.wait(INTERVAL_S):
            for level, count in self._current().counts.items():
                if count > self._reported.get(level, 0):
                    self._counter(level).increment(count - self._reported.get(level, 0))
                    self._reported[level] = count

    def _counter(self, level: str) -> Any:
        if level not in self._counters:
            self._counters[level] = self._family.Metric(labels={"level": level})
        return self._counters[level]
