"""The registry: what exists, and which version of it is live.

Usage:
    registry = Registry.open(home)
    domain = registry.find_domain("mini", "shop@2")
    version = registry.next_hplm_version("acme/returns")
    registry.publish_hplm("acme/returns", domain, "classification", labels, folder, metrics, version=version)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backends.errors import ConflictError, InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.names import check_hplm_id, check_name
from backends.registry.audit import note
from backends.registry.dependants import require_unused_domain, require_unused_root
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.garbage import Garbage, KeepRule, forget, unneeded
from backends.registry.opening import open_database
from backends.registry.queries import (
    domain_entry,
    domain_row,
    domain_version_row,
    find_domain_row,
    find_hplm_row,
    find_root_row,
    hplm_columns,
    hplm_entries,
    hplm_row,
    last_domain_version,
    last_hplm_version,
    require_room,
    root_row,
)
from backends.registry.reader import RegistryReader, published_meanwhile, used_root_name
from backends.registry.schema import DomainRow, DomainVersionRow, HplmRow, HplmVersionRow, RootRow
from backends.registry.servers import forget_ended


class Registry(RegistryReader):
    """Reads and publishes; one short transaction per call, so that many processes can share a registry."""

    @classmethod
    def open(cls, home: Home, create: bool = False) -> Registry:
        """Connect to a home's registry; `create` makes the home where there is none.

        A registry of an older release is brought to this one's format.
        """
        return cls(open_database(home, create))

    # --- roots and domains ---

    def publish_root(
        self, name: str, fingerprint: str, folder: str, domain: str, domain_folder: str, metrics: dict[str, Any]
    ) -> DomainEntry:
        """Add a root together with the first version of its first domain."""
        with self._database.publication() as (session, _):
            if (used := find_root_row(session, check_name(name, "root"))) is not None:
                raise ConflictError(used_root_name(used))
            root = RootRow(name=name, fingerprint=fingerprint, folder=folder)
            session.add(root)
            session.flush()
            note(session, "root.publish", name, after=fingerprint)
            return _add_domain_version(session, root, domain, domain_folder, None, metrics, None, 1)

    def publish_domain(
        self,
        root: str,
        name: str,
        folder: str,
        parent: DomainEntry | None,
        metrics: dict[str, Any],
        *,
        folders: Sequence[str] | None = None,
        version: int | None = None,
        replaces: int | None = None,
    ) -> DomainEntry:
        """Make the next version of a domain live; hPLMs stay on the version that they were tuned on.

        `folders` is what a lookup reads, nearest first; by default `folder` and what its parent reads. `version` is
        the number that the caller built it as; ConflictError if another build has published that one meanwhile, or if
        `replaces`, the version that an update began from, is live no more.
        """
        with self._database.publication() as (session, _):
            row = root_row(session, root)
            domain = find_domain_row(session, root, name)
            live = domain.live_version if domain is not None and domain.deleted_at is None else None
            _require_live(f"domain {name!r}", live, replaces)
            entry = _add_domain_version(session, row, name, folder, parent, metrics, folders, version)
            note(session, "domain.publish", f"{root}/{name}", live, entry.version)
            return entry

    def rollback_domain(self, root: str, name: str, to: int | None = None) -> DomainEntry:
        """Make an earlier version live again, or the one named; hPLMs stay on the versions they were tuned on."""
        with self._database.publication() as (session, _):
            row = domain_row(session, root, name)
            of_domain = select(DomainVersionRow).where(DomainVersionRow.domain_id == row.id)
            versions = {version.version: version for version in session.scalars(of_domain)}
            target = versions[_rollback_target(f"domain {name!r}", list(versions), row.live_version, to)]
            versions[row.live_version].retired_at, target.retired_at = time.time(), None
            note(session, "domain.rollback", f"{root}/{name}", row.live_version, target.version)
            row.live_version = target.version
            return domain_entry(session, target)

    def delete_domain(self, root: str, name: str) -> DomainEntry:
        """Delete a domain that nothing depends on; return its last live version."""
        with self._database.publication() as (session, _):
            live = domain_version_row(session, root, name)
            require_unused_domain(session, live)
            live.domain.deleted_at = live.retired_at = time.time()
            note(session, "domain.delete", f"{root}/{name}", live.version)
            return domain_entry(session, live)

    def delete_root(self, name: str) -> None:
        """Delete a root and its own first domain, once no hPLM and no other domain depends on it."""
        with self._database.publication() as (session, _):
            root = root_row(session, name)
            require_unused_root(session, root)
            root.deleted_at = time.time()
            note(session, "root.delete", name, root.fingerprint)
            for domain in session.scalars(select(DomainRow).where(DomainRow.root_id == root.id)):
                if domain.deleted_at is None:
                    live = domain_version_row(session, name, domain.name)
                    domain.deleted_at = live.retired_at = root.deleted_at

    # --- hPLMs ---

    def publish_hplm(
        self,
        hplm: str,
        domain: DomainEntry,
        task: str,
        labels: Sequence[str],
        folder: str,
        metrics: dict[str, Any],
        *,
        pair: bool = False,
        version: int | None = None,
        replaces: int | None = None,
        pinned: bool | None = None,
    ) -> HplmEntry:
        """Make the next version of an hPLM live; servers pick it up within a second.

        `version` and `replaces` are as for a domain.
        `pinned` says whether later updates stay on this domain version; None keeps a pin within the same domain.
        """
        with self._database.publication() as (session, revision):
            tuned_on = domain_version_row(session, domain.root, domain.name, domain.version)
            require_room(session, hplm)
            row = _hplm_row_to_publish(session, hplm, replaces, revision)
            added = HplmVersionRow(
                hplm=row,
                version=_next_version(f"hPLM {hplm!r}", last_hplm_version(session, row), version),
                domain_version=tuned_on,
                task=task,
                pair=pair,
                labels=list(labels),
                folder=folder,
                metrics=metrics,
                published_at=time.time(),
            )
            session.add(added)
            _update_pin(row, tuned_on, pinned)
            session.flush()
            row.last_version = added.version
            return _go_live(session, row, added, revision, "hplm.publish")

    def rollback_hplm(self, hplm: str, to: int | None = None) -> HplmEntry:
        """Make an earlier version live again, or the one named."""
        with self._database.publication() as (session, revision):
            row = hplm_row(session, hplm)
            of_hplm = select(HplmVersionRow).where(HplmVersionRow.hplm_id == row.id)
            versions = {version.version: version for version in session.scalars(of_hplm)}
            live = next(version.version for version in versions.values() if version.id == row.live_version_id)
            target = versions[_rollback_target(f"hPLM {hplm!r}", list(versions), live, to)]
            return _go_live(session, row, target, revision, "hplm.rollback")

    def delete_hplm(self, hplm: str) -> HplmEntry:
        """Take an hPLM out of service; return its last live version."""
        with self._database.publication() as (session, revision):
            row = hplm_row(session, hplm)
            entry = _entry(session, row.live_version_id)
            _retire(session, row, revision)
            row.live_version_id, row.pinned, row.revision = None, None, revision
            note(session, "hplm.delete", hplm, entry.version)
            return entry

    def pin_hplm(self, hplm: str, domain_version: int | None = None) -> HplmEntry:
        """Let updates stay on a version of the hPLM's domain; by default on the one that it was tuned on."""
        with self._database.publication() as (session, _):
            row = hplm_row(session, hplm)
            domain = _entry(session, row.live_version_id).domain
            before = row.pinned
            row.pinned = domain_version_row(session, domain.root, domain.name, domain_version or domain.version)
            session.flush()
            note(session, "hplm.pin", hplm, _pinned(before), _pinned(row.pinned))
            return _entry(session, row.live_version_id)

    def unpin_hplm(self, hplm: str) -> HplmEntry:
        """Let updates move to the live version of the hPLM's domain again."""
        with self._database.publication() as (session, _):
            row = hplm_row(session, hplm)
            before, row.pinned = row.pinned, None
            session.flush()
            note(session, "hplm.unpin", hplm, _pinned(before))
            return _entry(session, row.live_version_id)

    # --- garbage ---

    def unneeded(self, rule: KeepRule) -> list[Garbage]:
        with self._database.reading() as session:
            return unneeded(session, rule)

    def forget_unneeded(self, rule: KeepRule) -> list[Garbage]:
        """Remove the rows of what nothing needs; the files are the caller's to remove."""
        with self._database.publication() as (session, _):
            garbage = unneeded(session, rule)
            forget(session, garbage)
            forget_ended(session, rule.silence_s)
            note(session, "gc", f"{len(garbage)} versions")
            return garbage


def _add_domain_version(
    session: Session,
    root: RootRow,
    name: str,
    folder: str,
    parent: DomainEntry | None,
    metrics: dict[str, Any],
    folders: Sequence[str] | None,
    version: int | None,
) -> DomainEntry:
    domain = find_domain_row(session, root.name, check_name(name, "domain"))
    if domain is None:
        domain = DomainRow(root=root, name=name, live_version=0, last_version=0)
        session.add(domain)
    elif domain.deleted_at is None:
        domain_version_row(session, root.name, name).retired_at = time.time()
    added = DomainVersionRow(
        domain=domain,
        version=_next_version(f"domain {name!r}", last_domain_version(session, domain), version),
        parent=domain_version_row(session, root.name, parent.name, parent.version) if parent else None,
        folder=folder,
        folders=list(folders) if folders is not None else [folder, *(parent.folders if parent else ())],
        metrics=metrics,
        published_at=time.time(),
    )
    domain.live_version = domain.last_version = added.version
    domain.deleted_at = None
    session.add(added)
    session.flush()
    return domain_entry(session, added)


def _hplm_row_to_publish(session: Session, hplm: str, replaces: int | None, revision: int) -> HplmRow:
    """Find or add an hPLM's row, once it is sure that the version to be replaced is live."""
    row = find_hplm_row(session, check_hplm_id(hplm))
    _require_live(f"hPLM {hplm!r}", None if row is None else _live_version(session, row), replaces)
    if row is None:
        row = HplmRow(name=hplm, live_version_id=None, last_version=0, revision=revision)
        session.add(row)
    return row


def _update_pin(row: HplmRow, tuned_on: DomainVersionRow, pinned: bool | None) -> None:
    if pinned is not None:
        row.pinned = tuned_on if pinned else None
    elif row.pinned is not None and row.pinned.domain_id != tuned_on.domain_id:
        row.pinned = None


def _next_version(what: str, last: int, built_as: int | None) -> int:
    if built_as not in (None, last + 1):
        raise ConflictError(published_meanwhile(what, last))
    return last + 1


def _require_live(what: str, live: int | None, replaces: int | None) -> None:
    if replaces is not None and replaces != live:
        raise ConflictError(f"version {replaces} of {what}, which this one was to replace, is live no more")


def _rollback_target(what: str, versions: Sequence[int], live: int, to: int | None) -> int:
    if to == live:
        raise InvalidArgumentError(f"{what} is at version {to} already")
    if to is not None and to not in versions:
        raise NotFoundError(f"{what} has no version {to}; there are {', '.join(map(str, sorted(versions)))}")
    earlier = [version for version in versions if version < live]
    if to is None and not earlier:
        raise NotFoundError(f"{what} has no version before {live}")
    return max(earlier) if to is None else to


def _pinned(version: DomainVersionRow | None) -> str | None:
    return None if version is None else f"{version.domain.name}@{version.version}"


def _go_live(session: Session, row: HplmRow, version: HplmVersionRow, revision: int, action: str) -> HplmEntry:
    note(session, action, row.name, _live_version(session, row), version.version)
    _retire(session, row, revision)
    version.retired_at = version.retired_revision = None
    row.live_version_id, row.revision = version.id, revision
    session.flush()
    return _entry(session, version.id)


def _live_version(session: Session, row: HplmRow) -> int | None:
    """Read the number alone: a version whose row is damaged can be replaced, too."""
    return session.scalar(select(HplmVersionRow.version).where(HplmVersionRow.id == row.live_version_id))


def _retire(session: Session, row: HplmRow, revision: int) -> None:
    of_live = HplmVersionRow.id == row.live_version_id
    session.execute(update(HplmVersionRow).where(of_live).values(retired_at=time.time(), retired_revision=revision))


def _entry(session: Session, key: int | None) -> HplmEntry:
    (entry,) = hplm_entries(session, hplm_columns().where(HplmVersionRow.id == key))
    return entry
