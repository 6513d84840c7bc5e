"""How many of the jobs that wait are late at a moment, although nothing has removed them yet."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from builder.placement.simulated_job import SimulatedJob


class LateWatch:
    """Told of each job that comes to wait or waits no longer; moments that are asked about ascend.

    Removing late jobs from a full waiting room takes as long as a hundred arrivals. So they are removed when the next
    batch is chosen, and only counted before.
    """

    def __init__(self) -> None:
        self._due: list[tuple[int, int, SimulatedJob]] = []
        self._waiting: set[SimulatedJob] = set()
        self._late: set[SimulatedJob] = set()

    @property
    def next_us(self) -> float:
        """No job becomes late before this moment, or at it."""
        return self._due[0][0] if self._due else math.inf

    def enter(self, jobs: Iterable[SimulatedJob]) -> None:
        for job in jobs:
            if job.deadline_us is not None:
                self._waiting.add(job)
                heapq.heappush(self._due, (job.deadline_us, job.place, job))

    def leave(self, jobs: Iterable[SimulatedJob]) -> None:
        self._waiting.difference_update(jobs)
        if self._late:
            self._late.difference_update(jobs)

    def count(self, now_us: float) -> int:
        """Count the jobs that wait and were due before a moment."""
        while self._due and self._due[0][0] < now_us:
            job = heapq.heappop(self._due)[2]
            if job in self._waiting:
                self._late.add(job)
        return len(self._late)
