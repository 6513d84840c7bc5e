"""Callers that are gone: their jobs leave the queue and are not computed.

Whether a caller is gone only Triton knows, and each question is a round trip that takes long where its processes wait
for a core. So a few callers are asked now and then; as soon as one of them is gone all are asked, because callers
mostly go together. Triton 24.10 tells of cancellation only those who were asked directly: a step of an ensemble that
runs when its request is cancelled does not hear of it.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence

from backends.engine.job import Job

LOGGER = logging.getLogger(__name__)
_EVERY_S = 0.05
_ASKED = 2


def gone(jobs: Sequence[Job]) -> list[Job]:
    """Jobs whose callers are gone: none if those of a few are there, else of all."""
    if any(job.is_cancelled() for job in random.sample(jobs, min(len(jobs), _ASKED))):
        return [job for job in jobs if job.is_cancelled()]
    return []


class CallerWatch:
    """Looks after jobs that wait, now and then, on a thread of its own.

    Args:
        waiting: Those that wait now.
        drop: Takes jobs off the queue whose callers are gone.
    """

    def __init__(self, waiting: Callable[[], Sequence[Job]], drop: Callable[[Sequence[Job]], None]) -> None:
        self._waiting = waiting
        self._drop = drop
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serve_callers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                if dropped := gone(self._waiting()):
                    self._drop(dropped)
            except Exception:
                LOGGER.exception("whether callers are gone could not be seen")
