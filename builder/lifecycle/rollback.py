"""Making an earlier version live again, once it is sure that its files are still there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from backends.errors import CorruptFileError, FileError
from backends.home import Home
from backends.registry.entries import DomainEntry, HplmEntry, Version
from backends.registry.registry import Registry

Entry = TypeVar("Entry", HplmEntry, DomainEntry)


def rollback_hplm(home: Home, registry: Registry, hplm: str, to: int | None = None) -> HplmEntry:
    """The version before the live one, or version `to`; servers answer with it within a second."""
    target = _target(registry.hplm_versions(hplm), to)
    if target is not None:
        _require_folders(home, f"{hplm}@{target.version}", [target.folder, *target.domain.folders])
    return registry.rollback_hplm(hplm, to if target is None else target.version)


def unusable_students(home: Home, entry: HplmEntry) -> str | None:
    """Say why a version's students cannot answer; None where they can, or it has none."""
    if entry.students is None:
        return None
    from backends.root.store import RootFolder  # here, because they load PyTorch
    from backends.root.student_set import read_students

    root = entry.domain.root
    try:
        found = read_students(RootFolder(home.root(root)))
    except FileError as error:
        return f"the students of root {root!r} cannot be read: {error}"
    if found is None:
        return f"root {root!r} has no students any more"
    is_same = found.fingerprint == entry.students.edition
    return None if is_same else f"the students of root {root!r} were replaced after version {entry.version}"


def rollback_domain(home: Home, registry: Registry, root: str, name: str, to: int | None = None) -> DomainEntry:
    """The same for a domain; hPLMs stay on the versions that they were tuned on."""
    target = _target(registry.domain_versions(root, name), to)
    if target is not None:
        _require_folders(home, target.label, target.folders)
    return registry.rollback_domain(root, name, to if target is None else target.version)


def _target(history: Sequence[Version[Entry]], to: int | None) -> Entry | None:
    """Find the version that would go live; None where there is none, which the registry reports best."""
    live = next(version.entry.version for version in history if version.is_live)
    found = [v.entry for v in history if (v.entry.version < live if to is None else v.entry.version == to)]
    return found[-1] if found else None


def _require_folders(home: Home, what: str, folders: Iterable[str]) -> None:
    for folder in folders:
        if not (home.path / folder).is_dir():
            raise CorruptFileError(f"{what} cannot go live again: {home.path / folder} is missing")
