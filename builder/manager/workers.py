"""The executor that the supervisor needs: it starts an attempt of a job, sees how it ends, ends it."""

from __future__ import annotations

import time
from typing import Protocol

from builder.manager.jobs import Job

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


def is_silent(job: Job) -> bool:
    """Whether a worker on another machine has not reported for too long."""
    last_s = max(job.claimed_s or 0.0, job.heartbeat_s or 0.0)
    return time.time() - last_s > _SILENCE_S
