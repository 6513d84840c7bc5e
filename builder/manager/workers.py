"""The executor that the supervisor needs: it starts an attempt of a job, sees how it ends, ends it."""

from __future__ import annotations

from typing import Protocol

from builder.manager.jobs import Job
from builder.manager.unchanged import Unchanged

TRY_AGAIN = 75
"""Exit status of a worker that the registry or a process of its own is gone from: its job is to be tried again."""
_SILENCE_S = 60.0


class Workers(Protocol):
    def start(self, job: Job) -> None:
        """Start the attempt that was just claimed."""
        ...

    def ending(self, job: Job) -> str | None:
        """Say how the attempt's worker ended; None while it lives or may yet come to life."""
        ...

    def kill(self, job: Job) -> None:
        """End the attempt's worker and all that it started; it is gone on return."""
        ...

    def release(self, job: Job) -> None:
        """The attempt is over: give back what its worker held."""
        ...

    def close(self) -> None:
        """The manager goes; its workers go on if they can."""
        ...


class Silence:
    """How long workers on other machines have not reported, by this machine's clock that nobody sets.

    Theirs may be another, and a manager that has just come has yet to hear of them.
    """

    def __init__(self, reports: Unchanged | None = None) -> None:
        self._reports = reports or Unchanged()

    def is_too_long(self, job: Job) -> bool:
        return self._reports.seconds(job.id, (job.attempt, job.heartbeat_s)) > _SILENCE_S

    def forget(self, job: Job) -> None:
        self._reports.forget(job.id)
