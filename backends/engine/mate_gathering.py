"""Brings rows together again that were one batch in the stage before, where each stage is a process of its own.

They come one request after the other. A batch of each of them by itself would cost more than it computes.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.clock import now_us
from backends.engine.answering import reject
from backends.engine.job import Answer, Job, Respond
from backends.engine.next_stage import StageRows
from backends.errors import HplmError

LOGGER = logging.getLogger(__name__)
PATIENCE_US = 5_000
"""Longest time that a row waits for its mates: some may have been late, or belong to a request of several batches."""
_MOST_BATCHES = 64
"""Batches whose rows are counted; more are never on their way."""


@dataclass(frozen=True)
class _Held:
    jobs: Sequence[Job]
    until_us: int


class MateGathering:
    """Holds requests until the mates of their rows have arrived, then queues them together.

    Args:
        queue: Takes the jobs of all that is ready.
        rows: Told how many rows were queued and have not ended.
    """

    def __init__(self, queue: Callable[[Sequence[Job]], None], rows: StageRows) -> None:
        self._queue = queue
        self._rows = rows
        self._held: list[_Held] = []
        self._arrived: Counter[int] = Counter()
        """Rows by batch; newer batches come behind older ones."""
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._release_by_time, name="mates", daemon=True)
        self._thread.start()

    def add(self, requests: Sequence[Sequence[Job]]) -> None:
        """Take the jobs of requests; the calling thread queues those that are complete."""
        until_us = now_us() + PATIENCE_US
        with self._changed:
            for jobs in requests:
                self._arrived.update(job.mates.batch for job in jobs if job.mates is not None)
                self._held.append(_Held(jobs, until_us))
            ready = self._take(self._is_complete)
            self._forget()
            self._changed.notify_all()
        self._release(ready)

    def close(self) -> None:
        """Queue what is held; called when what was queued has ended."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()
        self._rows.close()

    def _is_complete(self, held: _Held) -> bool:
        mates = {job.mates for job in held.jobs if job.mates is not None}
        return all(self._arrived[each.batch] >= each.rows for each in mates)

    def _take(self, is_ready: Callable[[_Held], bool]) -> list[Job]:
        """Take requests out, under the lock; returns their jobs."""
        ready: list[Job] = []
        kept: list[_Held] = []
        for held in self._held:
            if is_ready(held):
                ready += held.jobs
            else:
                kept.append(held)
        self._held = kept
        return ready

    def _forget(self) -> None:
        for batch in list(self._arrived)[:-_MOST_BATCHES]:
            del self._arrived[batch]

    def _release(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        self._rows.add(len(jobs))
        for job in jobs:
            job.respond = self._counted(job.respond)
        try:
            self._queue(jobs)
        except Exception as error:  # a defect; the thread goes on for others
            LOGGER.exception("rows of the stage before could not be queued")
            reject(jobs, error)

    def _counted(self, respond: Respond) -> Respond:
        has_ended = False

        def respond_and_count(answer: Answer | HplmError) -> None:
            nonlocal has_ended
            if not has_ended:  # a defect may end a row twice
                has_ended = True
                self._rows.add(-1)
            respond(answer)

        return respond_and_count

    def _release_by_time(self) -> None:
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or bool(self._held))
                self._changed.wait_for(lambda: self._is_closed or not self._held, self._until_next_s())
                ready, is_last = self._take(self._is_due), self._is_closed
            self._release(ready)

    def _is_due(self, held: _Held) -> bool:
        return self._is_closed or held.until_us <= now_us()

    def _until_next_s(self) -> float:
        return max(0.0, (min((held.until_us for held in self._held), default=0) - now_us()) / 1e6)
