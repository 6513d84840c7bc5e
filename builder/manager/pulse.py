"""A worker's heartbeat: a thread that writes how far the job is and hears whether it is still wanted."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Self

from backends.errors import HplmError
from builder.manager.jobs import Job, Progress
from builder.manager.store import JobStore
from builder.progress import Step

LOGGER = logging.getLogger(__name__)
PULSE_S = 1.0
_LOG_INTERVAL_S = 10.0


class JobCancelledError(BaseException):
    """Raised by the builder's next progress report after its job was cancelled; no builder takes it for a failure."""


class Pulse:
    """`report` is what the builder calls; the database hears of it once a second."""

    def __init__(self, store: JobStore, job: Job) -> None:
        self._store = store
        self._job = job
        self._progress: Progress | None = None
        self._phase_began: tuple[str, int, float] = ("", 0, 0.0)
        self._logged_at = 0.0
        self._is_wanted = True
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def report(self, step: Step) -> None:
        """Take note of a step; a job that is to be cancelled ends here, between two steps of its builder."""
        if not self._is_wanted:
            raise JobCancelledError
        is_new_phase = step.phase != self._phase_began[0]
        if is_new_phase:
            self._phase_began = (step.phase, step.done, time.monotonic())
        self._progress = Progress(
            phase=step.phase, done=step.done, total=step.total, note=step.note, eta_s=self._eta_s(step)
        )
        if is_new_phase or step.done >= step.total or time.monotonic() - self._logged_at > _LOG_INTERVAL_S:
            self._logged_at = time.monotonic()
            LOGGER.info("%s %d/%d  %s", step.phase, step.done, step.total, step.note)

    def _eta_s(self, step: Step) -> float | None:
        """Seconds to the end of the phase at the pace since its beginning, which an earlier attempt may have made."""
        _, first, began = self._phase_began
        if step.done <= first:
            return None
        return round((time.monotonic() - began) / (step.done - first) * (step.total - step.done), 1)

    def _beat(self) -> None:
        while not self._stopping.wait(PULSE_S):
            try:
                job = self._store.pulse(self._job.id, self._job.attempt, self._progress)
            except HplmError as error:  # the job goes on; the next beat may get through
                LOGGER.warning("progress was not written: %s", error)
            except Exception:  # a pulse that ends would make a living worker look lost
                LOGGER.exception("a defect while writing progress")
            else:
                self._is_wanted = job is not None and not job.is_cancel_requested
