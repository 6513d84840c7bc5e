"""The server's view of the registry: kept in memory, brought up to date by a thread a few times a second."""

from __future__ import annotations

import logging
import threading

from backends.errors import NotFoundError, shown
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry

LOGGER = logging.getLogger(__name__)
REFRESH_INTERVAL_S = 0.2


class RegistrySnapshot:
    """Answers from memory; a request that found its hPLM here finishes on that version."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._revision = 0
        self._live: dict[str, HplmEntry] = {}
        self._by_key: dict[int, HplmEntry] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.refresh()
        self._thread = threading.Thread(target=self._keep_fresh, name="registry-snapshot", daemon=True)
        self._thread.start()

    def find(self, hplm: str) -> HplmEntry:
        """The live version of an hPLM; the error names nobody else's."""
        entry = self._live.get(hplm)
        if entry is None:
            raise NotFoundError(f"hPLM {shown(hplm)} does not exist")
        return entry

    def by_key(self, key: int) -> HplmEntry:
        """The version that a ticket names, even if it went live only now or is no longer live."""
        entry = self._by_key.get(key)
        if entry is None:
            entry = self._by_key.setdefault(key, self._registry.hplm_version(key))
        return entry

    def live(self) -> list[HplmEntry]:
        with self._lock:
            return list(self._live.values())

    def refresh(self) -> None:
        with self._lock:
            revision, entries, deleted = self._registry.hplm_changes(self._revision)
            for entry in entries:
                self._live[entry.id] = self._by_key[entry.key] = entry
            for hplm in deleted:
                self._live.pop(hplm, None)
            self._revision = revision

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._registry.close()

    def _keep_fresh(self) -> None:
        while not self._stopping.wait(REFRESH_INTERVAL_S):
            try:
                self.refresh()
            except Exception as error:  # whatever it is, what was live before goes on being served
                LOGGER.warning("registry not refreshed, serving what was live before: %s", error)
