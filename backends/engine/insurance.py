"""Rows that go on with an answer in hand: it is sent shortly before their deadlines, unless a better one is there."""

from __future__ import annotations

import heapq
from itertools import count

from backends.engine.outcomes import Emitted
from backends.engine.stack_protocol import Done, SoFar

_FEWEST = 64
_GUARD_US = 10_000
"""What sending an answer may take."""


class Insurance:
    """The latest `SoFar` of each row with a deadline. Used by the thread that answers."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Emitted]] = []
        self._numbers = count()
        self._most = _FEWEST
        """Entries beyond which those of rows that have ended are looked for: they hold whole batches in memory."""

    def insure(self, emitted: Emitted) -> None:
        """Keep the answer of a row that goes on; one without a deadline waits for the better answer."""
        if isinstance(emitted.outcome, SoFar) and emitted.job.deadline_us is not None:
            due_us = emitted.job.deadline_us - _GUARD_US
            heapq.heappush(self._heap, (due_us, next(self._numbers), emitted))
            if len(self._heap) > self._most:
                self._heap = [entry for entry in self._heap if _is_open(entry[2])]
                heapq.heapify(self._heap)
                self._most = max(_FEWEST, 2 * len(self._heap))

    def due_in_us(self, now_us: int) -> int | None:
        """How long until an answer has to be sent; None where there is none."""
        while self._heap and not _is_open(self._heap[0][2]):
            heapq.heappop(self._heap)
        return max(0, self._heap[0][0] - now_us) if self._heap else None

    def take_due(self, now_us: int) -> list[Emitted]:
        """The rows whose answers have to be sent now, each with it as its final outcome."""
        due: list[Emitted] = []
        while self._heap and self._heap[0][0] <= now_us:
            emitted = heapq.heappop(self._heap)[2]
            fallback = emitted.job.fallback  # None where the answer at hand holds what is not a number
            if _is_open(emitted) and fallback is not None:
                level = None if fallback.level is None else fallback.level.doubtful()
                due.append(Emitted(emitted.batch, emitted.job, Done(fallback.logits, level)))
        return due


def _is_open(emitted: Emitted) -> bool:
    return emitted.job in emitted.batch.open_jobs
