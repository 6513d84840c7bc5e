"""Reading the registry; one short transaction per call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, and_, bindparam, func, not_, or_, select
from sqlalchemy.orm import Session

from backends.errors import ConflictError, CorruptFileError, NotFoundError
from backends.names import split_domain
from backends.registry.audit import AuditLog
from backends.registry.database import Database
from backends.registry.entries import DomainEntry, DomainNode, HplmEntry, RootEntry, Version
from backends.registry.garbage import Garbage, known_folders
from backends.registry.position import Position, position_query
from backends.registry.queries import (
    MAX_NAMED_IDS,
    domain_columns,
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
    live_hplm_columns,
    require_room,
    root_entry,
    root_row,
    state_row,
)
from backends.registry.quotas import QuotaTable
from backends.registry.rows import ReadRows, read_rows
from backends.registry.schema import (
    DomainRow,
    DomainVersionRow,
    HplmRow,
    HplmVersionRow,
    PublicationRow,
    QuotaRow,
    RootRow,
    TokenRow,
)
from backends.registry.servers import ServerTable
from backends.registry.tokens import TokenTable

_AFTER = "after_revision"
_MARK_THEN = select(PublicationRow.mark).where(PublicationRow.revision == bindparam(_AFTER)).scalar_subquery()
_LAST_ACCESS = [select(func.max(table.revision)).scalar_subquery() for table in (TokenRow, QuotaRow)]
_HAS_ACCESS_CHANGED = or_(*(last > bindparam(_AFTER) for last in _LAST_ACCESS))  # by the index, for any plan
_LOOK = position_query().add_columns(_MARK_THEN, _HAS_ACCESS_CHANGED)
"""The position now; the mark of the revision that a reader has come to; whether tokens or quotas were written since."""
_IS_DELETED = HplmRow.live_version_id.is_(None)
_FIRST_CHANGED = (
    select(HplmRow.id, _IS_DELETED)
    .where(HplmRow.revision > bindparam(_AFTER))
    .order_by(HplmRow.revision)
    .limit(MAX_NAMED_IDS + 1)
)


class HplmChanges(NamedTuple):
    """The versions that went live and the IDs that were deleted on the way to a position.

    Where `is_whole`, the way does not begin at the reader's position: `entries` is all that is live. `damaged` are
    IDs whose rows cannot be read, with the reasons. `has_access`: tokens or quotas may have changed as well.
    """

    position: Position
    entries: Sequence[HplmEntry] = ()
    deleted: Sequence[str] = ()
    is_whole: bool = False
    damaged: Mapping[str, str] = MappingProxyType({})
    has_access: bool = False


class RegistryReader:
    """Reads the roots, domains and hPLMs that exist, and their live versions."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tokens = TokenTable(database)
        self.quotas = QuotaTable(database)
        self.audit = AuditLog(database)
        self.servers = ServerTable(database)

    def close(self) -> None:
        self._database.close()

    @property
    def revision(self) -> int:
        with self._database.reading() as session:
            return state_row(session).revision

    # --- roots ---

    def has_root(self, name: str) -> bool:
        with self._database.reading() as session:
            row = find_root_row(session, name)
            return row is not None and row.deleted_at is None

    def require_new_root(self, name: str) -> None:
        """Reject a name that is in use; that of a deleted root is, until its files are gone."""
        with self._database.reading() as session:
            row = find_root_row(session, name)
            if row is not None:
                raise ConflictError(used_root_name(row))

    def root(self, name: str) -> RootEntry:
        with self._database.reading() as session:
            return root_entry(root_row(session, name))

    def roots(self) -> list[RootEntry]:
        query = select(RootRow).where(RootRow.deleted_at.is_(None)).order_by(RootRow.name)
        with self._database.reading() as session:
            return [root_entry(row) for row in session.scalars(query)]

    # --- domains ---

    def has_domain(self, root: str, name: str) -> bool:
        with self._database.reading() as session:
            row = find_domain_row(session, root, name)
            return row is not None and row.deleted_at is None

    def domain(self, root: str, name: str, version: int | None = None) -> DomainEntry:
        """The live version of a domain, or the one asked for."""
        with self._database.reading() as session:
            return domain_entry(session, domain_version_row(session, root, name, version))

    def find_domain(self, root: str, reference: str) -> DomainEntry:
        """The domain that a user names: `shop` is its live version, `shop@2` that one."""
        return self.domain(root, *split_domain(reference))

    def next_domain_version(self, root: str, name: str) -> int:
        """Never a number that was given out before, also after a rollback or a deletion."""
        with self._database.reading() as session:
            return last_domain_version(session, find_domain_row(session, root, name)) + 1

    def domains(self, root: str | None = None) -> list[DomainEntry]:
        """The live version of every domain."""
        query = domain_columns().where(
            DomainVersionRow.version == DomainRow.live_version, DomainRow.deleted_at.is_(None)
        )
        if root is not None:
            query = query.where(RootRow.name == root)
        with self._database.reading() as session:
            return [domain_entry(session, row) for row in session.execute(query.order_by(RootRow.name, DomainRow.name))]

    def domain_parent(self, domain: DomainEntry) -> DomainEntry | None:
        """The domain version that answers what this one does not hold; None at the top of a tree."""
        with self._database.reading() as session:
            parent = domain_version_row(session, domain.root, domain.name, domain.version).parent
            return None if parent is None else domain_entry(session, parent)

    def domain_nodes(self) -> list[DomainNode]:
        """All domain versions that are still there, in the order of their names and versions."""
        query = (
            domain_columns().where(DomainRow.deleted_at.is_(None)).order_by(DomainRow.name, DomainVersionRow.version)
        )
        links = select(DomainVersionRow.id, DomainVersionRow.parent_id, DomainVersionRow.retired_at)
        with self._database.reading() as session:
            rows = session.execute(query.order_by(DomainRow.name, DomainVersionRow.version))
            entries = {row.id: domain_entry(session, row) for row in rows}
            above = {id: (parent, retired_at) for id, parent, retired_at in session.execute(links)}
            return [DomainNode(entry, entries.get(above[id][0]), above[id][1] is None) for id, entry in entries.items()]

    def domain_versions(self, root: str, name: str) -> list[Version[DomainEntry]]:
        """All versions that are still there, oldest first."""
        with self._database.reading() as session:
            domain = domain_row(session, root, name)
            of_domain = DomainVersionRow.domain_id == domain.id
            rows = session.scalars(select(DomainVersionRow).where(of_domain).order_by(DomainVersionRow.version))
            return [
                Version(
                    domain_entry(session, row), row.version == domain.live_version, row.published_at, row.retired_at
                )
                for row in rows
            ]

    # --- hPLMs ---

    def has_hplm(self, hplm: str) -> bool:
        with self._database.reading() as session:
            row = find_hplm_row(session, hplm)
            return row is not None and row.live_version_id is not None

    def require_room(self, hplm: str) -> None:
        """Reject one more hPLM of a tenant that has as many as its quota says, before it is built."""
        with self._database.reading() as session:
            require_room(session, hplm)

    def next_hplm_version(self, hplm: str) -> int:
        """Never a number that was given out before, also after a rollback or a deletion."""
        with self._database.reading() as session:
            return last_hplm_version(session, find_hplm_row(session, hplm)) + 1

    def require_next_hplm_version(self, hplm: str, version: int) -> None:
        """Reject a version that another build has published meanwhile, before its files are written over."""
        if self.next_hplm_version(hplm) != version:
            raise ConflictError(published_meanwhile(f"hPLM {hplm!r}", self.next_hplm_version(hplm) - 1))

    def hplm(self, hplm: str) -> HplmEntry:
        """The live version of an hPLM."""
        entries = self._hplms(live_hplm_columns().where(HplmRow.name == hplm))
        if not entries:
            raise NotFoundError(f"hPLM {hplm!r} does not exist")
        return entries[0]

    def hplms(self) -> list[HplmEntry]:
        """The live version of every hPLM."""
        return self._hplms(live_hplm_columns().order_by(HplmRow.name))

    def hplm_page(self, limit: int, after: str | None = None, tenant: str | None = None) -> list[HplmEntry]:
        """The live versions of the first `limit` hPLMs, of one tenant or all, whose IDs sort after `after`."""
        query = live_hplm_columns().order_by(HplmRow.name).limit(limit)
        if tenant is not None:
            prefix = f"{tenant}/"
            query = query.where(func.substr(HplmRow.name, 1, len(prefix)) == prefix)
        return self._hplms(query if after is None else query.where(HplmRow.name > after))

    def hplm_of_each_root(self) -> list[str]:
        """Return the first live hPLM of each root that has one."""
        query = (
            select(func.min(HplmRow.name))
            .join(HplmVersionRow, HplmRow.live_version_id == HplmVersionRow.id)
            .join(DomainVersionRow, HplmVersionRow.domain_version_id == DomainVersionRow.id)
            .join(DomainRow, DomainVersionRow.domain_id == DomainRow.id)
            .group_by(DomainRow.root_id)
        )
        with self._database.reading() as session:
            return sorted(session.scalars(query))

    def hplm_versions(self, hplm: str) -> list[Version[HplmEntry]]:
        """All versions that are still there, oldest first."""
        with self._database.reading() as session:
            row = hplm_row(session, hplm)
            of_hplm = HplmVersionRow.hplm_id == row.id
            entries = hplm_entries(session, hplm_columns().where(of_hplm).order_by(HplmVersionRow.version))
            times = select(HplmVersionRow.id, HplmVersionRow.published_at, HplmVersionRow.retired_at).where(of_hplm)
            at = {key: (published_at, retired_at) for key, published_at, retired_at in session.execute(times)}
            return [Version(entry, entry.key == row.live_version_id, *at[entry.key]) for entry in entries]

    def hplms_published_at(self) -> dict[int, float]:
        """When the hPLM versions went live that are still there, by their keys; where that is known."""
        with self._database.reading() as session:
            times = session.execute(select(HplmVersionRow.id, HplmVersionRow.published_at))
            return {key: published_at for key, published_at in times if published_at is not None}

    def hplms_by_key(self, keys: Collection[int]) -> list[HplmEntry]:
        """The versions with these keys that exist, live or not."""
        return self._hplms(hplm_columns().where(HplmVersionRow.id.in_(keys)))

    def domain_for_update(self, hplm: str) -> DomainEntry:
        """Return the domain version that the next version is tuned on by default: the pinned or the live one."""
        entry = self.hplm(hplm)
        return entry.pinned or self.domain(entry.domain.root, entry.domain.name)

    def known_folders(self, without: Collection[Garbage] = ()) -> set[str]:
        """Return every folder that a row names, live or not, relative to the home; rows `without` are left out."""
        with self._database.reading() as session:
            return known_folders(session, without)

    def require_unknown_folder(self, folder: str) -> None:
        """Reject a folder that holds the files of a version."""
        if folder in self.known_folders():
            raise ConflictError(f"{folder} holds the files of a published version, which are never written over")

    def hplm_changes(self, after: Position) -> HplmChanges:
        """Return what has changed since a position.

        Raises:
            CorruptFileError: All hPLMs are read, and all are damaged.
        """
        if self._database.is_at(after):
            return HplmChanges(after)
        with self._database.reading() as session:
            revision, mark, mark_then, has_access = session.execute(_LOOK, {_AFTER: after.revision}).one()
            now = Position(revision, mark)
            if after.mark is None or mark_then != after.mark:  # restored, or replaced by another registry
                live = _read_live(session, HplmRow.live_version_id.is_not(None))
                if live.damaged and not live.entries:
                    raise CorruptFileError(next(iter(live.damaged.values())))
                return HplmChanges(now, live.entries, is_whole=True, damaged=live.damaged, has_access=True)
            changed = _changed_hplms(session, after)
            live = ReadRows[HplmEntry]((), {}) if changed.live is None else _read_live(session, changed.live)
            deleted: Sequence[str] = ()
            if changed.deleted is not None:
                deleted = session.scalars(select(HplmRow.name).where(changed.deleted)).all()
            return HplmChanges(now, live.entries, deleted, damaged=live.damaged, has_access=bool(has_access))

    def _hplms(self, query: Select[Any]) -> list[HplmEntry]:
        with self._database.reading() as session:
            return hplm_entries(session, query)


class _Changed(NamedTuple):
    """Conditions of the live and of the deleted hPLMs that changed; None where none did."""

    live: ColumnElement[bool] | None
    deleted: ColumnElement[bool] | None


def _changed_hplms(session: Session, after: Position) -> _Changed:
    """Find what changed after a position by the index of revisions alone.

    In one query with the versions, PostgreSQL reads all hPLMs to find one.
    """
    rows = session.execute(_FIRST_CHANGED, {_AFTER: after.revision}).all()
    if len(rows) > MAX_NAMED_IDS:
        changed = HplmRow.revision > after.revision
        return _Changed(and_(changed, not_(_IS_DELETED)), and_(changed, _IS_DELETED))
    live = [id for id, is_deleted in rows if not is_deleted]
    deleted = [id for id, is_deleted in rows if is_deleted]
    return _Changed(
        HplmRow.id.in_(live) if live else None,
        # Asked again: in PostgreSQL it may be published anew since.
        and_(HplmRow.id.in_(deleted), _IS_DELETED) if deleted else None,
    )


def _read_live(session: Session, wanted: ColumnElement[bool]) -> ReadRows[HplmEntry]:
    return read_rows(
        session, HplmRow.name, wanted, lambda chosen: hplm_entries(session, live_hplm_columns().where(chosen))
    )


def used_root_name(row: RootRow) -> str:
    if row.deleted_at is None:
        return f"root {row.name!r} exists already"
    return f"root {row.name!r} was deleted but its files are still there; 'hplm gc' frees the name"


def published_meanwhile(what: str, last: int) -> str:
    return f"{what} was published by another build meanwhile, as version {last}"
