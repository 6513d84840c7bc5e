"""The queue between the threads that run batches and the one that answers."""

from __future__ import annotations

from queue import Empty, SimpleQueue

from backends.clock import now_us
from backends.engine.insurance import Insurance
from backends.engine.outcomes import Emitted
from backends.heartbeat import BEAT_EVERY_S, Beat


class EmittedQueue:
    """Outcomes in the order in which they were emitted, and answers that have to be sent before better ones come.

    Args:
        insurance: Keeps the answers of rows that go on.
        beat: Called before each wait for outcomes.
    """

    def __init__(self, insurance: Insurance, beat: Beat) -> None:
        self._insurance = insurance
        self._beat = beat
        self._emitted: SimpleQueue[Emitted | None] = SimpleQueue()

    def put(self, emitted: Emitted) -> None:
        self._emitted.put(emitted)

    def end(self) -> None:
        """Nothing is put any more."""
        self._emitted.put(None)

    def take(self) -> list[Emitted] | None:
        """Wait for outcomes, or until an answer has to be sent; None once nothing runs any more."""
        self._beat()
        due_in_us = self._insurance.due_in_us(now_us())
        timeout_s = BEAT_EVERY_S if due_in_us is None else min(due_in_us / 1e6, BEAT_EVERY_S)
        taken: list[Emitted | None] = []
        try:
            taken.append(self._emitted.get(timeout=timeout_s))
            while taken[-1] is not None:
                taken.append(self._emitted.get_nowait())
        except Empty:
            pass
        if taken == [None]:
            return None
        if taken and taken[-1] is None:
            self._emitted.put(None)
        emitted = [one for one in taken if one is not None]
        # Behind the outcomes that are there: of a job's final ones the first counts.
        emitted += self._insurance.take_due(now_us())
        for one in emitted:
            self._insurance.insure(one)
        return emitted
