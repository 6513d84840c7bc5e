"""Deleting domains and roots that no build reads: a build that loses its domain fails at its end, after hours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from backends.errors import ConflictError
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from builder.lifecycle.holds import running_builds
from builder.locks import no_build_begins


def delete_domain(home: Home, registry: Registry, root: str, name: str) -> DomainEntry:
    """Delete a domain that nothing depends on and no build reads; return its last live version."""
    own = {version.entry.folders[0] for version in registry.domain_versions(root, name)}
    with no_build_begins(home):
        _require_unread(home, f"domain {name!r}", lambda folder: folder in own)
        return registry.delete_domain(root, name)


def delete_root(home: Home, registry: Registry, name: str) -> None:
    """Delete a root without hPLMs and further domains whose tables no build reads."""
    tables = home.relative(home.path / "plots" / registry.root(name).name)
    with no_build_begins(home):
        _require_unread(home, f"root {name!r}", lambda folder: Path(folder).is_relative_to(tables))
        registry.delete_root(name)


def _require_unread(home: Home, what: str, is_part: Callable[[str], bool]) -> None:
    builds = running_builds(home)
    if any(map(is_part, builds.folders)):
        raise ConflictError(f"{what} stays: a build reads it")
    if not builds.all_known:
        raise ConflictError(f"{what} stays: a build has just begun and may read it; try again in a moment")
