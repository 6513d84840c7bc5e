"""Leases, also ahead of their batch: adapters are loaded into slots and pinned while other batches are computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable

from backends.adapters.slots import NoFreeSlotError
from backends.engine.job import Job, Lease
from backends.engine.stack_protocol import Stack
from backends.stack_key import StackKey
from backends.trace import Lane, span

LOGGER = logging.getLogger(__name__)


class Loading:
    """Takes leases for jobs. Used by one thread.

    Args:
        stack_of: A stack by its key, loaded at first use.
    """

    def __init__(self, stack_of: Callable[[StackKey], Stack]) -> None:
        self.stack_of = stack_of
        self._ahead: dict[Hashable, Lease | None] = {}

    def lease(self, job: Job) -> Lease:
        """Pin the job's hPLM, loading it where needed."""
        stack = self.stack_of(job.stack)
        if stack.holds(job):
            return stack.lease(job)
        with span(Lane.LOADING, "load"):
            return stack.lease(job)

    def load_ahead(self, job: Job) -> bool:
        """Pin the job's hPLM until `release_ahead`; false once there is no room.

        An error is ignored here; it is raised again, and answered, when the job's batch is staged.
        """
        key = job.stack, job.hplm_key
        if key not in self._ahead:
            self._ahead[key] = None
            try:
                self._ahead[key] = self.lease(job)
            except NoFreeSlotError:
                return False
            except Exception:
                return True
        return True

    def release_ahead(self) -> bool:
        """Release the pins taken ahead, and say whether there were any; jobs have leases of their own."""
        held = [lease for lease in self._ahead.values() if lease is not None]
        self._ahead = {}
        for lease in held:
            try:
                lease.release()
            except Exception:
                LOGGER.exception("a pin taken ahead could not be released")
        return bool(held)
