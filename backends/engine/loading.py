"""hPLMs made ready ahead of their batch: their adapters lie in slots, pinned, while others are computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial

from backends.adapters.bank import HplmArtifact
from backends.adapters.slots import NoFreeSlotError
from backends.engine.job import Job
from backends.engine.stack import ReadyHplm, UpperStack
from backends.registry.entries import HplmEntry
from backends.trace import Lane, span

LOGGER = logging.getLogger(__name__)

Load = Callable[[HplmEntry], HplmArtifact]


class Loading:
    """Pins hPLMs for jobs. Used by one thread.

    Args:
        stack_of: The stack of a root, loaded at first use.
        load: An hPLM version's artefact from the host bank.
    """

    def __init__(self, stack_of: Callable[[str], UpperStack], load: Load) -> None:
        self.stack_of = stack_of
        self._load = load
        self._ahead: dict[int, tuple[UpperStack, ReadyHplm] | None] = {}

    def ready(self, job: Job) -> ReadyHplm:
        """Pin the job's hPLM, loading it where needed; whoever gets it releases it."""
        stack, load = self.stack_of(job.root), partial(self._load, job.entry)
        if stack.slots.holds(job.hplm_key):
            return stack.ready(job.hplm_key, load)
        with span(Lane.LOADING, "load"):
            return stack.ready(job.hplm_key, load)

    def load_ahead(self, job: Job) -> bool:
        """Pin the job's hPLM until `let_go`; false once there is no room.

        What goes wrong is tried again, and told, when the job's batch is staged.
        """
        if job.hplm_key not in self._ahead:
            self._ahead[job.hplm_key] = None
            try:
                self._ahead[job.hplm_key] = self.stack_of(job.root), self.ready(job)
            except NoFreeSlotError:
                return False
            except Exception:
                return True
        return True

    def let_go(self) -> bool:
        """Release what was pinned ahead, and say whether that was anything; batches have pinned what they use."""
        held = [pair for pair in self._ahead.values() if pair is not None]
        self._ahead = {}
        release_all(held)
        return bool(held)


def release_all(pinned: Iterable[tuple[UpperStack, ReadyHplm]]) -> None:
    """Whatever goes wrong with one of them, the others are released."""
    for stack, hplm in pinned:
        try:
            stack.release(hplm)
        except Exception:
            LOGGER.exception("adapter %d could not be released", hplm.lease.key)
