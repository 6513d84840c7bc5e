"""The server's view of the registry: kept in memory, brought up to date by a thread a few times a second.

A second thread prepares new domains, so that tokens, quotas, deletions and other hPLMs never wait for that.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence

from backends.errors import NotFoundError, shown
from backends.home import Home
from backends.registry.access import AccessQuotas, AccessTokens
from backends.registry.database import Database
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.opening import open_database
from backends.registry.position import START, Position
from backends.registry.position_report import PositionReport
from backends.registry.reader import HplmChanges, RegistryReader
from backends.registry.staleness import Staleness, StalenessSettings
from backends.stack_key import StackKey

LOGGER = logging.getLogger(__name__)
_NOBODYS = ""
"""The name of no hPLM."""
Prepare = Callable[[DomainEntry], object]
REFRESH_INTERVAL_S = 0.2
_APART = 0.75, 1.25
LONGEST_INTERVAL_S = REFRESH_INTERVAL_S * _APART[1]
"""Looks of many servers at one registry come apart, or those that had to wait for each other would do so again."""
QUERY_PATIENCE_S = 1.0
"""How long a server waits for a silent or busy registry before it asks anew."""
RETIRED_KEPT_S = 60.0
"""Time for which a replaced version is remembered; no request takes longer."""


class RegistrySnapshot:
    """Answers from memory; a request that found its hPLM here finishes on that version."""

    def __init__(
        self,
        registry: RegistryReader,
        retired_kept_s: float = RETIRED_KEPT_S,
        refresh_interval_s: float = REFRESH_INTERVAL_S,
        staleness: StalenessSettings = StalenessSettings(),
        instance: str | None = None,
    ) -> None:
        self._registry = registry
        self._staleness = Staleness(staleness)
        self._refresh_interval_s = refresh_interval_s
        self._retired_kept_s = retired_kept_s
        self._position = START
        self.tokens = AccessTokens()
        self.quotas = AccessQuotas()
        self._live: dict[str, HplmEntry] = {}
        self._by_key: dict[int, HplmEntry] = {}
        self._retired_at: OrderedDict[int, float] = OrderedDict()
        """Keys that are remembered though they are not live, the oldest first."""
        self._folders: Counter[tuple[str, ...]] = Counter()
        self._coming: dict[str, HplmEntry] = {}
        """Versions that go live once their domains are prepared, by the IDs of their hPLMs."""
        self._prepare: Prepare | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        """Held while the database is read; lookups of live versions do not wait for it."""
        self._preparing = threading.Lock()
        """Held while a domain is prepared, which may take long; reading does not wait for it."""
        self._behind: dict[str, Position] = {}
        """HPLMs of which an older version is live here than in the registry, and where that one was live there."""
        self._stopping, self._wanted = threading.Event(), threading.Event()
        self._report = None
        if instance is not None:
            self._report = PositionReport(registry.servers, instance, staleness.limit_s, retired_kept_s)
            self._report.begin()
        self.refresh()
        self._note_position()
        self._threads = [
            threading.Thread(target=self._keep_fresh, name="registry-snapshot", daemon=True),
            threading.Thread(target=self._keep_prepared, name="registry-domains", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def open(
        cls, home: Home, staleness: StalenessSettings = StalenessSettings(), instance: str | None = None
    ) -> RegistrySnapshot:
        """Open a server's view of a home's registry. The first connection waits as commands do, later ones do not.

        The registry is told of a model `instance` that takes requests in, so that `hplm gc` keeps what it may serve.
        """
        open_database(home, create=False).close()
        reader = RegistryReader(Database.connect(home.registry_url, QUERY_PATIENCE_S))
        return cls(reader, staleness=staleness, instance=instance)

    @property
    def age_s(self) -> float:
        """Seconds since the registry was read."""
        return self._staleness.age_s

    def find(self, hplm: str, is_allowed: bool = True) -> HplmEntry:
        """The live version of an hPLM; the error names no other tenant's.

        One that is not allowed does not exist. It is not looked up, so the time tells nothing of it either.

        Raises:
            NotFoundError: There is none.
            UnavailableError: The registry has been away for too long.
        """
        self._staleness.require_fresh()
        entry = self._live.get(hplm if is_allowed else _NOBODYS)
        if entry is None:
            raise NotFoundError(f"hPLM {shown(hplm)} does not exist")
        return entry

    def by_key(self, key: int) -> HplmEntry:
        """The version that a ticket names, if it is live or was until a moment ago."""
        entry = self._by_key.get(key)
        if entry is None:
            raise NotFoundError(f"hPLM version {key} does not exist")
        return entry

    def look_up(self, keys: Collection[int]) -> None:
        """Ask the registry for versions that are not known, and know those that exist: they went live only now.

        It takes as long as the registry does, so it is not for a thread on which requests wait.
        """
        entries = self._registry.hplms_by_key(keys)
        with self._lock:
            for entry in entries:
                self._remember(entry)
                self._retire(entry)

    def knows(self, key: int) -> bool:
        """Whether a version is live or was until a moment ago."""
        return key in self._by_key

    def live(self) -> list[HplmEntry]:
        with self._lock:
            return list(self._live.values())

    def live_folders(self) -> frozenset[str]:
        """The tables that live versions read, did until a moment ago or will in one; any other may be closed."""
        with self._lock:
            coming = [entry.domain.folders for entry in self._coming.values()]
            return frozenset(folder for folders in (*self._folders, *coming) for folder in folders)

    def stacks(self) -> set[StackKey]:
        """The stacks that live versions run on, did until a moment ago or will in one."""
        with self._lock:
            entries, coming = list(self._by_key.values()), list(self._coming.values())
        return {StackKey(entry.domain.root) for entry in coming}.union(*(entry.stacks for entry in entries))

    def prepare_with(self, prepare: Prepare | None) -> None:
        """Prepare each new domain before an hPLM on it goes live, so that no request waits for it.

        An hPLM whose domain cannot be prepared goes live all the same, and fails its own requests.
        """
        with self._preparing:
            self._prepare = prepare

    def refresh(self) -> None:
        """Take in what was published, and wait until all of it is live; the threads do the same, one part each."""
        self._read()
        while self._prepare_next():
            pass

    def close(self) -> None:
        self._stopping.set()
        self._wanted.set()
        for thread in self._threads:
            thread.join()
        if self._report is not None:
            self._report.end()
        self._registry.close()

    def _read(self) -> None:
        """Take in what was published, except the hPLMs whose domains are to be prepared first."""
        with self._reading:
            asked_s = time.monotonic()
            changes = self._registry.hplm_changes(self._position)
            if changes.has_access:
                self._apply_access(changes)
            _tell_damaged("hPLM %s stays as it was: %s", changes.damaged)
            self._staleness.note_read(asked_s)
            self._apply(changes.entries, self._deleted_by(changes), changes.damaged)
            self._position = changes.position

    def _note_position(self) -> None:
        """Tell the registry from where on this snapshot may serve."""
        if self._report is not None:
            with self._lock:
                behind = list(self._behind.values())
            self._report.note(min([*behind, self._position], key=lambda position: position.revision))

    def _apply_access(self, changes: HplmChanges) -> None:
        """Take in tokens and quotas; those that a restored registry lacks are gone."""
        after_revision = 0 if changes.is_whole else self._position.revision
        tokens = self._registry.tokens.changed(after_revision)
        self.tokens.apply(tokens.entries, changes.is_whole, tokens.damaged)
        quotas = self._registry.quotas.changed(after_revision)
        self.quotas.apply(quotas.entries, changes.is_whole, quotas.damaged)
        _tell_damaged("token %s is rejected: %s", tokens.damaged)
        _tell_damaged("the quota of tenant %s stays as it was: %s", quotas.damaged)

    def _deleted_by(self, changes: HplmChanges) -> Collection[str]:
        if not changes.is_whole or self._position == START:
            return changes.deleted
        LOGGER.warning(
            "the registry was restored or replaced; what is live there is served: %d hPLMs", len(changes.entries)
        )
        kept = {entry.id for entry in changes.entries}.union(changes.damaged)
        with self._lock:
            return (self._live.keys() | self._coming.keys()) - kept

    def _apply(self, entries: Sequence[HplmEntry], deleted: Collection[str], damaged: Collection[str]) -> None:
        with self._lock:
            for hplm in damaged:
                self._stay_behind(hplm)
            for entry in entries:
                if self._prepare is None or entry.domain.folders in self._folders:
                    self._coming.pop(entry.id, None)
                    self._go_live(entry)
                else:
                    self._coming[entry.id] = entry
                    self._stay_behind(entry.id)
            for hplm in deleted:
                self._coming.pop(hplm, None)
                self._behind.pop(hplm, None)
                if hplm in self._live:
                    self._retire(self._live.pop(hplm))
            self._forget_old()

    def _prepare_next(self) -> bool:
        """Prepare one domain, and let the hPLMs go live that wait for it; False if none does."""
        with self._preparing:
            with self._lock:
                domain = next((entry.domain for entry in self._coming.values()), None)
            if domain is None:
                return False
            try:
                if self._prepare is not None:
                    self._prepare(domain)
            except Exception as error:
                LOGGER.error("domain %s cannot be served: %s", domain.label, error)
            with self._lock:
                for entry in [entry for entry in self._coming.values() if entry.domain.folders == domain.folders]:
                    self._go_live(self._coming.pop(entry.id))
            return True

    def _go_live(self, entry: HplmEntry) -> None:
        previous = self._live.get(entry.id)
        self._remember(entry)
        self._retired_at.pop(entry.key, None)
        self._live[entry.id] = entry
        self._behind.pop(entry.id, None)
        if previous is not None and previous.key != entry.key:
            self._retire(previous)

    def _stay_behind(self, hplm: str) -> None:
        """Note that what is live of an hPLM stays so for now; the lock is held, and the position is that of before."""
        if hplm in self._live:
            self._behind.setdefault(hplm, self._position)

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
        while not self._stopping.wait(self._refresh_interval_s * random.uniform(*_APART)):
            try:
                self._read()
                self._note_position()
            except Exception as error:  # whatever it is, what was live before goes on being served
                self._staleness.note_failure(error)
            if self._coming:
                self._wanted.set()

    def _keep_prepared(self) -> None:
        while not self._stopping.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while not self._stopping.is_set() and self._prepare_next():
                pass


def _tell_damaged(message: str, damaged: Mapping[str, str]) -> None:
    for name, reason in damaged.items():
        LOGGER.error(message, shown(name), reason)
