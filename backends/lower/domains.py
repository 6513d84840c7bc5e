"""The domains that a process serves: opened before they go live, closed when nothing live reads them.

Closing drops references only: a batch that still reads a table keeps its memory map to its end.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import cached_property

from backends.failures import Failures
from backends.home import Home
from backends.lower.computing import Lacking, compute_missing
from backends.lower.filling import DomainFilling, FillingCounts
from backends.lower.layers import LowerLayers
from backends.lower.model import LowerModel, PendingTexts, RootFront
from backends.lower.recent_times import RecentTimes
from backends.lower.settings import FillingSettings, LowerDtype, Missing
from backends.plot.allowance import Allowance
from backends.plot.askers import Askers
from backends.plot.overlay import MOST_UNWRITTEN, Overlay
from backends.plot.overlay_pool import OverlayPool
from backends.plot.overlay_seat import Seat
from backends.plot.table import Table
from backends.registry.entries import DomainEntry, HplmEntry
from backends.root.store import RootFolder
from backends.scheduling.tenants import tenant_of
from backends.storage import read_errors_are_clear

LOGGER = logging.getLogger(__name__)


class OpenRoot:
    """The parts that the domains of one root share."""

    def __init__(self, folder: RootFolder, overlay_bytes: int, dtype: LowerDtype) -> None:
        self._folder = folder
        self._overlay_bytes = overlay_bytes
        self._dtype: LowerDtype = dtype
        self.front = RootFront(folder)

    @cached_property
    def layers(self) -> LowerLayers:
        return LowerLayers(self._folder, self._dtype)

    @cached_property
    def pool(self) -> OverlayPool:
        return OverlayPool(self._overlay_bytes, self.layers.layout)


@dataclass(frozen=True)
class OpenDomain:
    root: str
    lower_model: LowerModel
    filling: DomainFilling | None


@dataclass(frozen=True)
class OverlayFigures:
    """Totals of all overlays of a process."""

    entries: int
    size_bytes: int


class OpenDomains:
    """Tables are memory maps, so that holding many costs little."""

    def __init__(self, home: Home, settings: FillingSettings) -> None:
        self._home = home
        self._settings = settings
        self._seat = _seat(home) if settings.fills else None
        self._roots: dict[str, OpenRoot] = {}
        self._tables: dict[str, Table] = {}
        self._domains: dict[tuple[str, ...], OpenDomain] = {}
        self._private: frozenset[tuple[str, ...]] = frozenset()
        """Domains that one tenant has to itself; what is not known yet is shared."""
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        """Held for as long as it takes to open a domain, or to let some go; requests to open domains do not wait."""
        self._failures = Failures()
        self._hits: Counter[tuple[str, ...]] = Counter()
        self._counts = FillingCounts()
        self._unwritten = Allowance(MOST_UNWRITTEN)
        self.call_times = RecentTimes()
        """How long the rows of a call took lately: to be looked up, where the disk may be slow, and to be computed."""

    def found(self, domain: DomainEntry) -> OpenDomain | None:
        """Return a domain if it is open, at once: opening, also by another thread, may take seconds."""
        with self._lock:
            return self._domains.get(domain.folders)

    def opened(self, domain: DomainEntry) -> OpenDomain:
        """Return a domain, opened if it is not yet.

        Raises:
            HplmError: Its files cannot be read.
        """
        opened = self.found(domain)
        if opened is None:
            with self._failures.remembered(domain.folders), self._opening, self._readable(domain):
                opened = self.found(domain) or self._open(domain)
                with self._lock:
                    self._domains[domain.folders] = opened
        return opened

    def lower_model(self, domain: DomainEntry) -> LowerModel:
        return self.opened(domain).lower_model

    def prepare(self, domain: DomainEntry) -> None:
        """Open a domain with all that its first request would wait for."""
        filling = self.opened(domain).filling
        if filling is not None:
            filling.prepare()

    def fill(self, call: Sequence[tuple[OpenDomain, PendingTexts, Askers]]) -> None:
        """Compute what the texts of a call lack, or have it learned, as the settings say."""
        parts = [Lacking(texts, domain.filling, by) for domain, texts, by in call if domain.filling is not None]
        for part in parts:
            part.note_askers()
        if self._settings.missing is Missing.COMPUTE:
            compute_missing(parts, self._settings.compute_limit)
            return
        for part in parts:
            part.filling.want(part.keys, part.missing_askers)

    def note_tenants(self, entries: Iterable[HplmEntry]) -> None:
        """Note which domains one tenant has to itself, by their live hPLMs."""
        tenants: dict[tuple[str, ...], set[str]] = {}
        for entry in entries:
            tenants.setdefault(entry.domain.folders, set()).add(tenant_of(entry.id))
        private = frozenset(folders for folders, names in tenants.items() if len(names) == 1)
        with self._lock:
            self._private = private
            for folders, domain in self._domains.items():
                if domain.filling is not None:
                    domain.filling.overlay.is_private = folders in private

    def note(self, domain: DomainEntry, counts: Mapping[str, int]) -> None:
        """Count fragments by the level of a domain's chain that answered."""
        with self._lock:
            self._hits.update({(domain.root, level): count for level, count in counts.items()})

    def hits(self) -> dict[tuple[str, ...], int]:
        """Fragments looked up by root and level; those of levels that no open domain reads are forgotten."""
        with self._lock:
            return dict(self._hits)

    def fillings(self) -> list[DomainFilling]:
        with self._lock:
            return [domain.filling for domain in self._domains.values() if domain.filling is not None]

    def figures(self) -> OverlayFigures:
        with self._lock:
            pools = self._pools()
        return OverlayFigures(sum(pool.entries for pool in pools), sum(pool.size_bytes for pool in pools))

    def events(self) -> dict[str, int]:
        """Count the fragments computed, learned, dropped, evicted and failed so far."""
        with self._lock:
            counts = asdict(self._counts)
            evicted = counts.pop("evicted") + sum(pool.evicted for pool in self._pools())
        return {**counts, "evicted": evicted}

    def close_unread(self, live_folders: Callable[[], frozenset[str]]) -> None:
        """Close the domains that read a table outside the live folders, and the parts that no domain shares any more.

        `live_folders` is called once no domain can be opened, so it includes every domain that a request has opened.
        """
        with self._opening, self._lock:
            live = live_folders()
            retired = [folders for folders in self._domains if not live.issuperset(folders)]
            closed = [self._domains.pop(folders) for folders in retired]
            self._drop_unread()
        for domain in closed:
            if domain.filling is not None:
                domain.filling.overlay.close()

    def close(self) -> None:
        self.close_unread(frozenset)
        if self._seat is not None:
            self._seat.release()

    def _drop_unread(self) -> None:
        read = {folder for folders in self._domains for folder in folders}
        self._tables = {folder: table for folder, table in self._tables.items() if folder in read}
        roots = {domain.root for domain in self._domains.values()}
        for name in self._roots.keys() - roots:
            root = self._roots.pop(name)
            self._counts.evicted += root.pool.evicted if self._settings.fills else 0
        levels = {(domain.root, level) for domain in self._domains.values() for level in domain.lower_model.level_names}
        self._hits = Counter({level: count for level, count in self._hits.items() if level in levels})

    def _pools(self) -> list[OverlayPool]:
        return [root.pool for root in self._roots.values()] if self._settings.fills else []

    def _readable(self, domain: DomainEntry) -> AbstractContextManager[None]:
        return read_errors_are_clear(self._home.path / domain.folders[0])

    def _open(self, domain: DomainEntry) -> OpenDomain:
        root = self._root(domain.root)
        tables = [self._table(folder, root.front.fingerprint) for folder in domain.folders]
        filling = self._filling(domain, root) if self._settings.fills else None
        suppliers = (filling.overlay,) if filling else ()
        lower_model = LowerModel(root.front, tables, suppliers, self._settings.missing is Missing.COMPUTE)
        return OpenDomain(domain.root, lower_model, filling)

    def _filling(self, domain: DomainEntry, root: OpenRoot) -> DomainFilling:
        folders = [self._home.path / folder for folder in domain.folders]
        origin = root.layers.origin(folders)
        seat = None if self._seat is None else self._seat.number
        overlay = Overlay(f"{domain.label}/overlay", root.pool, folders[0], origin, seat, self._unwritten)
        overlay.is_private = domain.folders in self._private
        return DomainFilling(overlay, root.layers, folders, self._counts)

    def _root(self, root: str) -> OpenRoot:
        if root not in self._roots:
            path = self._home.root(root)
            with self._failures.remembered(root), read_errors_are_clear(path):
                folder = RootFolder(path)
                opened = OpenRoot(folder, self._settings.overlay_mb << 20, self._settings.dtype)
            if self._settings.fills:
                _ = opened.pool  # pools are counted under the lock
            with self._lock:
                self._roots[root] = opened
        return self._roots[root]

    def _table(self, folder: str, fingerprint: str) -> Table:
        if folder not in self._tables:
            self._tables[folder] = Table.open(self._home.path / folder, fingerprint)
        return self._tables[folder]


def _seat(home: Home) -> Seat | None:
    try:
        return Seat(home.run)
    except OSError as error:
        LOGGER.warning("learned fragments will be forgotten at the end: %s", error)
        return None
