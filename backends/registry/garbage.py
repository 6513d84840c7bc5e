"""Finds versions that nothing needs any more, and removes them from the registry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from backends.registry.schema import Base, DomainRow, DomainVersionRow, HplmRow, HplmVersionRow, RootRow
from backends.registry.servers import served_from

_IDS_PER_STATEMENT = 500
Item = TypeVar("Item")


class Kind(StrEnum):
    HPLM_VERSION = "hPLM version"
    DOMAIN_VERSION = "domain version"
    ROOT = "root"


@dataclass(frozen=True)
class Garbage:
    """A row that nothing needs; `folder` may still be shared with one that something does."""

    kind: Kind
    row_id: int
    label: str
    folder: str


@dataclass(frozen=True)
class KeepRule:
    """The versions that a collection keeps besides the needed ones.

    - `count`: so many versions on either side of the live one.
    - `retired_since`: versions that were live then or later, in seconds since the epoch.
    - `read`: domain versions whose folders a running build reads.
    - `all_domains`: all domain versions and roots, because a running build has yet to say what it reads.
    - `silence_s`: versions that a server may still serve, unless it was silent for this long; None: for as long as
      it says itself.
    """

    count: int
    retired_since: float
    read: frozenset[str] = frozenset()
    all_domains: bool = False
    silence_s: float | None = None

    def around(self, versions: Sequence[int], live: int | None) -> set[int]:
        """Select the versions of one hPLM or domain to keep: live, the nearest older and the newest newer ones."""
        if live is None:
            return set()
        older = sorted(version for version in versions if version < live)
        newer = sorted(version for version in versions if version > live)
        return {live, *_last(older, self.count), *_last(newer, self.count)}

    def is_recent(self, at: float | None) -> bool:
        """Return whether it was live lately; without a time it was never retired."""
        return at is None or at >= self.retired_since


def unneeded(session: Session, rule: KeepRule) -> list[Garbage]:
    """Versions of hPLMs first, then of domains, then roots: each may be needed by those before it."""
    hplms = _unneeded_hplm_versions(session, rule)
    if rule.all_domains:
        return hplms
    gone = {item.row_id for item in hplms}
    domains = _unneeded_domain_versions(session, rule, gone)
    return [*hplms, *domains, *_unneeded_roots(session, rule, {item.row_id for item in domains})]


def forget(session: Session, garbage: Collection[Garbage]) -> None:
    """Delete the rows; names of hPLMs and domains stay, so that no version number is ever given out again."""
    ids = {kind: [item.row_id for item in garbage if item.kind is kind] for kind in Kind}
    _delete(session, HplmVersionRow, ids[Kind.HPLM_VERSION])
    for chunk in _chunks(ids[Kind.DOMAIN_VERSION]):  # parents may go before children
        session.execute(update(DomainVersionRow).where(DomainVersionRow.id.in_(chunk)).values(parent_id=None))
    _delete(session, DomainVersionRow, ids[Kind.DOMAIN_VERSION])
    for chunk in _chunks(ids[Kind.ROOT]):
        session.execute(delete(DomainRow).where(DomainRow.root_id.in_(chunk)))
    _delete(session, RootRow, ids[Kind.ROOT])


def known_folders(session: Session, without: Collection[Garbage]) -> set[str]:
    gone = {(item.kind, item.row_id) for item in without}
    roots = session.execute(select(RootRow.id, RootRow.folder))
    hplms = session.execute(select(HplmVersionRow.id, HplmVersionRow.folder))
    domains = session.execute(select(DomainVersionRow.id, DomainVersionRow.folder, DomainVersionRow.folders))
    found = {folder for id, folder in roots if (Kind.ROOT, id) not in gone}
    found |= {folder for id, folder in hplms if (Kind.HPLM_VERSION, id) not in gone}
    for id, own, others in domains:
        if (Kind.DOMAIN_VERSION, id) not in gone:
            found |= {own, *others}
    return found


def _unneeded_hplm_versions(session: Session, rule: KeepRule) -> list[Garbage]:
    live = dict(session.execute(select(HplmRow.id, HplmRow.live_version_id)).all())
    names = dict(session.execute(select(HplmRow.id, HplmRow.name)).all())
    columns = (
        HplmVersionRow.id,
        HplmVersionRow.hplm_id,
        HplmVersionRow.version,
        HplmVersionRow.folder,
        HplmVersionRow.retired_at,
        HplmVersionRow.retired_revision,
    )
    rows = session.execute(select(*columns).order_by(HplmVersionRow.hplm_id, HplmVersionRow.version)).all()
    versions: dict[int, list[int]] = {}
    live_versions: dict[int, int] = {}
    for row in rows:
        versions.setdefault(row.hplm_id, []).append(row.version)
        if row.id == live[row.hplm_id]:
            live_versions[row.hplm_id] = row.version
    served = served_from(session, rule.silence_s)
    kept = {id: rule.around(of_one, live_versions.get(id)) for id, of_one in versions.items()}
    return [
        Garbage(Kind.HPLM_VERSION, row.id, f"{names[row.hplm_id]}@{row.version}", row.folder)
        for row in rows
        if row.version not in kept[row.hplm_id]
        and not rule.is_recent(row.retired_at)
        and (served is None or (row.retired_revision or 0) <= served)
    ]


def _unneeded_domain_versions(session: Session, rule: KeepRule, gone_hplm_versions: set[int]) -> list[Garbage]:
    domains = {row.id: row for row in session.scalars(select(DomainRow))}
    rows = session.scalars(
        select(DomainVersionRow).order_by(DomainVersionRow.domain_id, DomainVersionRow.version)
    ).all()
    needed = _pinned(session) | _tuned_on(session, gone_hplm_versions)
    by_domain: defaultdict[int, list[DomainVersionRow]] = defaultdict(list)
    for row in rows:
        by_domain[row.domain_id].append(row)
    for domain in domains.values():
        versions = [row.version for row in by_domain[domain.id]]
        kept = rule.around(versions, domain.live_version if domain.deleted_at is None else None)
        needed |= {row.id for row in by_domain[domain.id] if row.version in kept}
    needed |= {row.id for row in rows if rule.is_recent(row.retired_at) or row.folder in rule.read}
    needed = _with_ancestors(rows, needed)
    return [
        Garbage(Kind.DOMAIN_VERSION, row.id, f"{domains[row.domain_id].name}@{row.version}", row.folder)
        for row in rows
        if row.id not in needed
    ]


def _pinned(session: Session) -> set[int]:
    return {id for id in session.scalars(select(HplmRow.pinned_id).distinct()) if id is not None}


def _tuned_on(session: Session, gone: set[int]) -> set[int]:
    """The domain versions that remaining hPLM versions were tuned on."""
    rows = session.execute(select(HplmVersionRow.id, HplmVersionRow.domain_version_id))
    return {domain_version_id for id, domain_version_id in rows if id not in gone}


def _with_ancestors(rows: Sequence[DomainVersionRow], needed: set[int]) -> set[int]:
    """Add the parents of needed versions and all other tables that their lookups read."""
    by_id = {row.id: row for row in rows}
    owners = {row.folder: row.id for row in rows}
    waiting, found = list(needed), set(needed)
    while waiting:
        row = by_id[waiting.pop()]
        read = {owners[folder] for folder in row.folders if folder in owners}
        new = (read | ({row.parent_id} if row.parent_id is not None else set())) - found
        found |= new
        waiting += new
    return found


def _unneeded_roots(session: Session, rule: KeepRule, gone_domain_versions: set[int]) -> list[Garbage]:
    query = select(DomainRow.root_id, DomainVersionRow.id).join(DomainRow, DomainVersionRow.domain_id == DomainRow.id)
    in_use = {root_id for root_id, id in session.execute(query) if id not in gone_domain_versions}
    deleted = session.scalars(select(RootRow).where(RootRow.deleted_at.is_not(None)).order_by(RootRow.name))
    return [
        Garbage(Kind.ROOT, row.id, row.name, row.folder)
        for row in deleted
        if row.id not in in_use and not rule.is_recent(row.deleted_at)
    ]


def _delete(session: Session, table: type[Base], ids: Sequence[int]) -> None:
    for chunk in _chunks(ids):
        session.execute(delete(table).where(table.__table__.c.id.in_(chunk)))


def _chunks(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _IDS_PER_STATEMENT):
        yield ids[start : start + _IDS_PER_STATEMENT]


def _last(items: Sequence[Item], count: int) -> Sequence[Item]:
    return items[max(0, len(items) - count) :]
