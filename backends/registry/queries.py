"""Queries that both reads and publications make, within a session.

Entries are made from plain columns, with one query for all the domain versions that they name: ten thousand hPLMs
cost two queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from backends.errors import ConflictError, CorruptFileError, NotFoundError, shown
from backends.registry.entries import DomainEntry, HplmEntry, RootEntry, readable_metrics
from backends.registry.quotas import quota_of
from backends.registry.rows import row_fields
from backends.registry.schema import DomainRow, DomainVersionRow, HplmRow, HplmVersionRow, RootRow, State

MAX_NAMED_IDS = 500


def state_row(session: Session) -> State:
    return session.get_one(State, 1)


# --- roots and domains ---


def root_row(session: Session, name: str) -> RootRow:
    row = find_root_row(session, name)
    if row is None or row.deleted_at is not None:
        raise NotFoundError(f"root {name!r} does not exist")
    return row


def find_root_row(session: Session, name: str) -> RootRow | None:
    """Find a root; also a deleted one until its files are collected."""
    return session.scalars(select(RootRow).where(RootRow.name == name)).one_or_none()


def root_entry(row: RootRow) -> RootEntry:
    return RootEntry(row.name, row.fingerprint, row.folder)


def find_domain_row(session: Session, root: str, name: str) -> DomainRow | None:
    """Find a domain, also a deleted one."""
    query = select(DomainRow).join(RootRow).where(RootRow.name == root, DomainRow.name == name)
    return session.scalars(query).one_or_none()


def domain_row(session: Session, root: str, name: str) -> DomainRow:
    row = find_domain_row(session, root, name)
    if row is None or row.deleted_at is not None:
        raise NotFoundError(f"domain {name!r} of root {root!r} does not exist")
    return row


def domain_version_row(session: Session, root: str, name: str, version: int | None = None) -> DomainVersionRow:
    """The live version of a domain, or the one asked for."""
    domain = domain_row(session, root, name)
    wanted = domain.live_version if version is None else version
    query = select(DomainVersionRow).where(DomainVersionRow.domain_id == domain.id, DomainVersionRow.version == wanted)
    row = session.scalars(query).one_or_none()
    if row is None:
        raise NotFoundError(f"domain {name!r} has no version {wanted}")
    return row


def last_domain_version(session: Session, row: DomainRow | None) -> int:
    """The highest number given out; a build of an older release adds versions without counting them."""
    if row is None:
        return 0
    query = select(func.max(DomainVersionRow.version)).where(DomainVersionRow.domain_id == row.id)
    return max(row.last_version, session.scalar(query) or 0)


def domain_columns() -> Select[Any]:
    columns = (
        DomainVersionRow.id,
        RootRow.name.label("root"),
        DomainRow.name,
        DomainVersionRow.version,
        DomainVersionRow.folders,
        DomainVersionRow.metrics,
    )
    joined = select(*columns).join(DomainRow, DomainVersionRow.domain_id == DomainRow.id)
    return joined.join(RootRow, DomainRow.root_id == RootRow.id)


def domain_entry(session: Session, row: Row[Any] | DomainVersionRow) -> DomainEntry:
    fields = row_fields(row, "a domain's version")
    if isinstance(row, DomainVersionRow):
        root, name = row.domain.root.name, row.domain.name
    else:
        root, name = fields.text("root"), fields.text("name")
    folders = fields.texts("folders") or tuple(_folders_of_parents(session, row.id))
    return DomainEntry(root, name, fields.whole("version"), folders, dict(fields.mapping("metrics")))


def _folders_of_parents(session: Session, id: int) -> list[str]:
    """Return the folders of a version that an older release has added: its own and its parents'."""
    version: DomainVersionRow | None = session.get_one(DomainVersionRow, id)
    folders: list[str] = []
    while version is not None:
        folders.append(version.folder)
        version = version.parent
    return folders


def domain_entries(session: Session, ids: set[int]) -> dict[int, DomainEntry]:
    query = domain_columns()
    if len(ids) <= MAX_NAMED_IDS:  # beyond that, reading all is cheaper, and databases limit the list
        query = query.where(DomainVersionRow.id.in_(ids))
    return {row.id: domain_entry(session, row) for row in session.execute(query)}


# --- hPLMs ---


def find_hplm_row(session: Session, hplm: str) -> HplmRow | None:
    """Find an hPLM, also a deleted one."""
    return session.scalars(select(HplmRow).where(HplmRow.name == hplm)).one_or_none()


def hplm_row(session: Session, hplm: str) -> HplmRow:
    row = find_hplm_row(session, hplm)
    if row is None or row.live_version_id is None:
        raise NotFoundError(f"hPLM {hplm!r} does not exist")
    return row


def last_hplm_version(session: Session, row: HplmRow | None) -> int:
    """Return the last version of an hPLM, as `last_domain_version` does."""
    if row is None:
        return 0
    query = select(func.max(HplmVersionRow.version)).where(HplmVersionRow.hplm_id == row.id)
    return max(row.last_version, session.scalar(query) or 0)


def hplm_columns() -> Select[Any]:
    columns = (
        HplmVersionRow.id,
        HplmRow.name,
        HplmVersionRow.version,
        HplmVersionRow.task,
        HplmVersionRow.pair,
        HplmVersionRow.labels,
        HplmVersionRow.domain_version_id,
        HplmVersionRow.folder,
        HplmVersionRow.metrics,
        HplmRow.pinned_id,
    )
    return select(*columns).join(HplmRow, HplmVersionRow.hplm_id == HplmRow.id)


def live_hplm_columns() -> Select[Any]:
    return hplm_columns().where(HplmVersionRow.id == HplmRow.live_version_id)


def hplm_entries(session: Session, query: Select[Any]) -> list[HplmEntry]:
    """The entries of a query over `hplm_columns`."""
    rows: Sequence[Row[Any]] = session.execute(query).all()
    domains = domain_entries(session, _named_domains(rows)) if rows else {}
    return [_hplm_entry(row, domains) for row in rows]


def _named_domains(rows: Iterable[Row[Any]]) -> set[int]:
    return {id for row in rows for id in (row.domain_version_id, row.pinned_id) if id is not None}


def _hplm_entry(row: Row[Any], domains: dict[int, DomainEntry]) -> HplmEntry:
    fields = row_fields(row, "an hPLM's version")
    for id in (row.domain_version_id, row.pinned_id):
        if id is not None and id not in domains:
            raise CorruptFileError(f"{fields.where} names a domain's version {shown(id)} that is not there")
    return HplmEntry(
        key=fields.whole("id"),
        id=fields.text("name"),
        version=fields.whole("version"),
        task=fields.text("task"),
        labels=fields.texts("labels"),
        domain=domains[row.domain_version_id],
        folder=fields.text("folder"),
        pair=fields.flag("pair"),
        metrics=readable_metrics(fields.part("metrics")),
        pinned=None if row.pinned_id is None else domains[row.pinned_id],
    )


def require_room(session: Session, hplm: str) -> None:
    """Check that a tenant may have this hPLM: it does, or it has fewer than its quota says."""
    tenant = hplm.partition("/")[0]
    most = quota_of(session, tenant).hplms
    if most is None:
        return
    prefix = f"{tenant}/"
    of_tenant = func.substr(HplmRow.name, 1, len(prefix)) == prefix
    live = set(session.scalars(select(HplmRow.name).where(of_tenant, HplmRow.live_version_id.is_not(None))))
    if hplm not in live and len(live) >= most:
        raise ConflictError(f"tenant {shown(tenant)} has {len(live)} hPLMs, as many as it may (quota hplms)")
