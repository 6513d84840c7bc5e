"""The server's view of the registry: kept in memory, brought up to date by a thread a few times a second."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from backends.errors import NotFoundError, shown
from backends.registry.access import AccessQuotas, AccessTokens
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.reader import RegistryReader
from backends.stack_key import StackKey

LOGGER = logging.getLogger(__name__)
_NOBODYS = ""
"""The name of no hPLM."""
Prepare = Callable[[DomainEntry], object]
REFRESH_INTERVAL_S = 0.2
RETIRED_KEPT_S = 60.0
"""Time for which a replaced version is remembered; no request takes longer."""


class RegistrySnapshot:
    """Answers from memory; a request that found its hPLM here finishes on that version."""

    def __init__(
        self,
        registry: RegistryReader,
        retired_kept_s: float = RETIRED_KEPT_S,
        refresh_interval_s: float = REFRESH_INTERVAL_S,
    ) -> None:
        self._registry = registry
        self._refresh_interval_s = refresh_interval_s
        self._retired_kept_s = retired_kept_s
        self._revision = 0
        self.tokens = AccessTokens()
        self.quotas = AccessQuotas()
        self._live: dict[str, HplmEntry] = {}
        self._by_key: dict[int, HplmEntry] = {}
        self._retired_at: OrderedDict[int, float] = OrderedDict()
        """Keys that are remembered though they are not live, the oldest first."""
        self._folders: Counter[tuple[str, ...]] = Counter()
        self._coming: dict[tuple[str, ...], DomainEntry] = {}
        """Domains of hPLMs that are about to go live."""
        self._prepare: Prepare | None = None
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        """Held while the database is read; lookups of live versions do not wait for it."""
        self._stopping = threading.Event()
        self.refresh()
        self._thread = threading.Thread(target=self._keep_fresh, name="registry-snapshot", daemon=True)
        self._thread.start()

    def find(self, hplm: str, is_allowed: bool = True) -> HplmEntry:
        """The live version of an hPLM; the error names no other tenant's.

        One that is not allowed does not exist. It is not looked up, so the time tells nothing of it either.
        """
        entry = self._live.get(hplm if is_allowed else _NOBODYS)
        if entry is None:
            raise NotFoundError(f"hPLM {shown(hplm)} does not exist")
        return entry

    def by_key(self, key: int) -> HplmEntry:
        """The version that a ticket names, even if it went live only now or is no longer live."""
        entry = self._by_key.get(key)
        if entry is None:
            entry = self._registry.hplm_version(key)
            with self._lock:
                self._remember(entry)
                self._retire(entry)
        return entry

    def knows(self, key: int) -> bool:
        """Whether a version is live or was until a moment ago."""
        return key in self._by_key

    def live(self) -> list[HplmEntry]:
        with self._lock:
            return list(self._live.values())

    def live_folders(self) -> frozenset[str]:
        """The tables that live versions read, did until a moment ago or will in one; any other may be closed."""
        with self._lock:
            return frozenset(folder for folders in (*self._folders, *self._coming) for folder in folders)

    def stacks(self) -> set[StackKey]:
        """The stacks that live versions run on, did until a moment ago or will in one."""
        with self._lock:
            entries, coming = list(self._by_key.values()), list(self._coming.values())
        return {StackKey(domain.root) for domain in coming}.union(*(entry.stacks for entry in entries))

    def prepare_with(self, prepare: Prepare | None) -> None:
        """Prepare each new domain before an hPLM on it goes live, so that no request waits for it.

        An hPLM whose domain cannot be prepared goes live all the same, and fails its own requests.
        """
        with self._refreshing:
            self._prepare = prepare

    def refresh(self) -> None:
        with self._refreshing:
            revision, entries, deleted = self._registry.hplm_changes(self._revision)
            if revision != self._revision:
                # Before domains, which may take long.
                self.tokens.apply(self._registry.tokens.changed(self._revision))
                self.quotas.apply(self._registry.quotas.changed(self._revision))
            self._prepare_new(entries)
            self._apply(entries, deleted)
            self._revision = revision

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._registry.close()

    def _prepare_new(self, entries: list[HplmEntry]) -> None:
        if self._prepare is None:
            return
        with self._lock:
            domains = {entry.domain.folders: entry.domain for entry in entries}
            self._coming = {folders: domain for folders, domain in domains.items() if folders not in self._folders}
        for domain in self._coming.values():
            try:
                self._prepare(domain)
            except Exception as error:
                LOGGER.error("domain %s cannot be served: %s", domain.label, error)

    def _apply(self, entries: list[HplmEntry], deleted: list[str]) -> None:
        with self._lock:
            for entry in entries:
                self._go_live(entry)
            for hplm in deleted:
                if hplm in self._live:
                    self._retire(self._live.pop(hplm))
            self._coming = {}
            self._forget_old()

    def _go_live(self, entry: HplmEntry) -> None:
        previous = self._live.get(entry.id)
        self._remember(entry)
        self._retired_at.pop(entry.key, None)
        self._live[entry.id] = entry
        if previous is not None and previous.key != entry.key:
            self._retire(previous)

    def _remember(self, entry: HplmEntry) -> None:
        if entry.key not in self._by_key:
            self._by_key[entry.key] = entry
            self._folders[entry.domain.folders] += 1

    def _retire(self, entry: HplmEntry) -> None:
        """Remember a version for a while only, unless it is live."""
        live = self._live.get(entry.id)
        if live is None or live.key != entry.key:
            self._retired_at[entry.key] = time.monotonic()

    def _forget_old(self) -> None:
        while self._retired_at:
            key, retired_at = next(iter(self._retired_at.items()))
            if time.monotonic() - retired_at < self._retired_kept_s:
                return
            del self._retired_at[key]
            folders = self._by_key.pop(key).domain.folders
            self._folders[folders] -= 1
            if not self._folders[folders]:
                del self._folders[folders]

    def _keep_fresh(self) -> None:
        while not self._stopping.wait(self._refresh_interval_s):
            try:
                self.refresh()
            except Exception as error:  # whatever it is, what was live before goes on being served
                LOGGER.warning("registry not refreshed, serving what was live before: %s", error)
