"""`hplm gc`: what nothing needs any more goes, first from the registry, then from the disk.

Usage:
    report = collect_garbage(home, registry, GarbageSettings(keep=2), dry_run=True)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.garbage import Garbage, KeepRule, Kind
from backends.registry.registry import Registry
from builder.clock_mark import Clocks, require_steady_clock
from builder.lifecycle.holds import running_builds, unheld
from builder.lifecycle.leftovers import Leftover, attachments, forgotten_states, leftovers, size_bytes
from builder.locks import no_build_begins


@dataclass(frozen=True)
class GarbageSettings:
    """`keep` versions on either side of the live one stay for rollbacks.

    What was live less than `grace_s` ago may still be serving. What an interrupted build left stays for
    `unfinished_s`, because until then the same command goes on with it. What a server may still serve stays, too; one
    that was silent for `silence_s` has ended, None: for as long as it says that it serves without the registry.
    """

    keep: int = 1
    grace_s: float = 60.0
    unfinished_s: float = 24 * 3600.0
    silence_s: float | None = None

    def __post_init__(self) -> None:
        bounds = {
            "keep": self.keep,
            "grace": self.grace_s,
            "unfinished": self.unfinished_s,
            "server-silence": self.silence_s,
        }
        for name, value in bounds.items():
            if value is not None and value < 0:
                raise InvalidArgumentError(f"{name} must be at least 0, not {value}")


@dataclass(frozen=True)
class Removal:
    """`folder` is relative to the home; None where another version shares it, so that only the registry forgets it."""

    kind: str
    name: str
    folder: str | None
    size_bytes: int


@dataclass(frozen=True)
class ServerSeen:
    """A process of a server, and how long ago it was heard of."""

    name: str
    silent_s: float


@dataclass(frozen=True)
class GarbageReport:
    """The folders that were removed, or would be; builds are at work on those `in_use`, which the next run removes.

    `served` are versions that only `servers` keep, which may still answer with them.
    """

    removed: tuple[Removal, ...]
    in_use: tuple[str, ...]
    domains_kept: bool
    """Whether a build that has just begun kept all domain versions: it may be going to read any of them."""
    served: tuple[str, ...] = ()
    servers: tuple[ServerSeen, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(removal.size_bytes for removal in self.removed)

    def to_json(self) -> dict[str, Any]:
        return {"size_bytes": self.size_bytes, **asdict(self)}


def collect_garbage(
    home: Home,
    registry: Registry,
    settings: GarbageSettings,
    dry_run: bool = False,
    clocks: Clocks = Clocks(),
) -> GarbageReport:
    """Remove what nothing needs; a crash on the way leaves files that the next call finds. Builds begin afterwards.

    Raises:
        ConflictError: The machine's clock was set lately, so that ages cannot be told.
    """
    with no_build_begins(home):
        require_steady_clock(home, max(settings.grace_s, settings.unfinished_s), clocks)
        return _collect(home, registry, settings, dry_run)


def _collect(home: Home, registry: Registry, settings: GarbageSettings, dry_run: bool) -> GarbageReport:
    builds = running_builds(home)
    since = time.time() - settings.grace_s
    rule = KeepRule(settings.keep, since, builds.folders, not builds.all_known, settings.silence_s)
    garbage = registry.unneeded(rule) if dry_run else registry.forget_unneeded(rule)
    still_there = garbage if dry_run else ()
    known = registry.known_folders(without=still_there)
    collector = _Collector(home, registry, still_there, dry_run)
    found = leftovers(home, known | {item.folder for item in garbage}, settings.unfinished_s)
    states = forgotten_states(home, settings.unfinished_s)
    removed = [*collector.versions(garbage, known), *collector.leftovers(found), *collector.states(states)]
    served = _served(registry, rule, garbage)
    servers = _servers(registry, settings.silence_s) if served else ()
    return GarbageReport(tuple(removed), tuple(collector.in_use), rule.all_domains, served, servers)


def _served(registry: Registry, rule: KeepRule, garbage: Collection[Garbage]) -> tuple[str, ...]:
    """The versions that would go too if no server were there."""
    gone = frozenset(garbage)
    return tuple(item.label for item in registry.unneeded(replace(rule, silence_s=0.0)) if item not in gone)


def _servers(registry: Registry, silence_s: float | None) -> tuple[ServerSeen, ...]:
    """The servers that stand where the one does that keeps most."""
    serving = [entry for entry in registry.servers.all() if entry.may_serve(silence_s)]
    oldest = min((entry.position.revision for entry in serving), default=0)
    return tuple(
        ServerSeen(entry.name, round(entry.silent_s, 1)) for entry in serving if entry.position.revision == oldest
    )


class _Collector:
    """Removes files, or only adds them up."""

    def __init__(self, home: Home, registry: Registry, without: Collection[Garbage], dry_run: bool) -> None:
        self._home = home
        self._registry = registry
        self._without = without
        self._dry_run = dry_run
        self.in_use: list[str] = []

    def versions(self, garbage: Collection[Garbage], known: Collection[str]) -> Iterator[Removal]:
        """The files of forgotten rows. Version numbers are never given out again, so only a root needs its lock."""
        seen = set(known)
        for item in garbage:
            folder = self._home.path / item.folder
            if item.folder in seen:
                yield Removal(item.kind, item.label, None, 0)
            elif item.kind is Kind.ROOT:
                yield from self._unless_held(folder, Removal(item.kind, item.label, item.folder, 0))
            else:
                yield Removal(item.kind, item.label, item.folder, self._remove(folder))
            seen.add(item.folder)

    def leftovers(self, found: Collection[Leftover]) -> Iterator[Removal]:
        for item in found:
            yield from self._unless_held(item.target, Removal(item.kind, item.path.name, self._name(item.path), 0))

    def states(self, found: Collection[Path]) -> Iterator[Removal]:
        for path in found:
            yield Removal("states in the cache", path.name, self._name(path), self._remove(path))

    def _unless_held(self, target: Path, removal: Removal) -> Iterator[Removal]:
        folder = self._name(target) if removal.folder is None else removal.folder
        with unheld(self._home, target) as free:
            if not free:
                self.in_use.append(folder)
            elif folder not in self._registry.known_folders(self._without):  # a build may have ended meanwhile
                yield replace(removal, size_bytes=self._remove(self._home.path / folder))

    def _remove(self, path: Path) -> int:
        """Remove a folder or file and what belongs to it; returns its bytes."""
        paths = [part for part in (path, *attachments(path)) if part.exists() or part.is_symlink()]
        total = sum(size_bytes(part) for part in paths)
        if not self._dry_run:
            for part in paths:
                _remove(part)
        return total

    def _name(self, path: Path) -> str:
        return self._home.relative(path)


def _remove(path: Path) -> None:
    """Remove in two steps, so that a crash leaves nothing under the old name that looks whole."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path if path.name.startswith(".") else path.with_name(f".{path.name}.garbage")
    if doomed is not path:
        path.rename(doomed)
    shutil.rmtree(doomed)
