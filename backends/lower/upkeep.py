"""A background thread that learns missing fragments, writes overlays to disk, and closes unread domains."""

from __future__ import annotations

import logging
import threading
import time

from backends.lower.domains import OpenDomains
from backends.registry.snapshot import RegistrySnapshot

LOGGER = logging.getLogger(__name__)
SYNC_EVERY_S = 0.5
RETIRE_EVERY_S = 5.0
# Learning pauses three times as long as it works. A thread of low priority instead would delay requests whenever it was
# suspended while it held the interpreter.
_REST = 3.0


class Upkeep:
    """The upkeep of open domains; closing it writes the rest of the overlays to disk."""

    def __init__(self, domains: OpenDomains, snapshot: RegistrySnapshot) -> None:
        self._domains = domains
        self._snapshot = snapshot
        self._synced_s = self._retired_s = self._learn_from_s = time.monotonic()
        self._turn = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lower-upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._domains.close()

    def _run(self) -> None:
        while not self._stopping.wait(min(SYNC_EVERY_S, max(0.0, self._learn_from_s - time.monotonic()))):
            try:
                self._learn()
                self._sync()
                self._retire()
            except Exception as error:  # requests are served all the same
                LOGGER.error("upkeep of the tables failed: %s", error, exc_info=error)

    def _learn(self) -> None:
        """Learn one small batch, then pause in proportion; the rest of the upkeep goes on meanwhile."""
        started_s = time.monotonic()
        if started_s < self._learn_from_s:
            return
        self._learn_from_s = started_s + SYNC_EVERY_S  # also where learning fails
        if self._learn_one():
            learned_s = time.monotonic()
            self._learn_from_s = learned_s + _REST * (learned_s - started_s)

    def _learn_one(self) -> bool:
        """Learn a batch for the next domain in turn that lacks fragments; returns whether there was one."""
        fillings = self._domains.fillings()
        for step in range(len(fillings)):
            index = (self._turn + step) % len(fillings)
            self._turn = index + 1  # also where learning fails: the next domain is not to wait for this one
            if fillings[index].learn_some():
                return True
        return False

    def _sync(self) -> None:
        if time.monotonic() - self._synced_s >= SYNC_EVERY_S:
            self._synced_s = time.monotonic()
            for filling in self._domains.fillings():
                filling.overlay.sync()

    def _retire(self) -> None:
        if time.monotonic() - self._retired_s >= RETIRE_EVERY_S:
            self._retired_s = time.monotonic()
            self._domains.note_tenants(self._snapshot.live())
            self._domains.close_unread(self._snapshot.live_folders)
