"""Removes old jobs with their logs, and the remains of abandoned uploads."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from builder.manager.job_log import log_path
from builder.manager.store import JobStore
from builder.manager.uploads import Uploads

LOGGER = logging.getLogger(__name__)
_EVERY_S = 3600.0
_DAY_S = 86_400.0
_UPLOAD_IDLE_S = _DAY_S


@dataclass(frozen=True)
class Retention:
    """A finished job is remembered for `days`, and while it is among the last `jobs` that finished."""

    days: float = 30.0
    jobs: int = 1000

    def __post_init__(self) -> None:
        if self.days <= 0 or self.jobs < 1:
            raise InvalidArgumentError("finished jobs are kept for more than 0 days, and at least 1 of them")


class Housekeeping:
    """One round at the start and one an hour; what goes wrong waits for the next."""

    def __init__(self, home: Home, store: JobStore, uploads: Uploads, retention: Retention) -> None:
        self._home = home
        self._store = store
        self._uploads = uploads
        self._retention = retention
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._uploads.sweep()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def tidy(self) -> None:
        """One round; a crash on the way leaves jobs that the next round finds."""
        old = self._store.finished(before_s=time.time() - self._retention.days * _DAY_S, but_last=self._retention.jobs)
        for job_id in old:
            log_path(self._home, job_id).unlink(missing_ok=True)
        self._store.forget(old)
        self._uploads.sweep(_UPLOAD_IDLE_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tidy()
            except (HplmError, OSError) as error:
                LOGGER.warning("old jobs and uploads are not removed just now: %s", error)
            except Exception:
                LOGGER.exception("a defect while removing old jobs and uploads")
            self._stopping.wait(_EVERY_S)
