"""The registry: what exists, and which version of it is live.

Usage:
    registry = Registry.open(home)
    registry.publish_hplm("acme/returns", domain=registry.domain("mini", "shop"), task="classification", ...)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, Select, create_engine, inspect, make_url, select, update
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.orm import Session, contains_eager

from backends.errors import ConflictError, FormatVersionError, NotFoundError, UnavailableError
from backends.home import Home
from backends.names import check_hplm_id, check_name
from backends.registry.entries import DomainEntry, HplmEntry, RootEntry
from backends.registry.schema import (
    REGISTRY_FORMAT_VERSION,
    Base,
    DomainRow,
    DomainVersionRow,
    HplmRow,
    HplmVersionRow,
    RootRow,
    State,
)

_LOCK_TIMEOUT_S = 30


class Registry:
    """Reads and publishes; one short transaction per call, so that many processes can share a registry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, home: Home, create: bool = False) -> Registry:
        """Connect to a home's registry; `create` makes the home where there is none."""
        url = make_url(home.registry_url)
        if create:
            home.path.mkdir(parents=True, exist_ok=True)
        elif not home.path.is_dir():
            raise NotFoundError(f"there is no home at {home.path}; 'hplm root add' makes one")
        else:
            _require_file(url, home.path)
        options = {"connect_args": {"timeout": _LOCK_TIMEOUT_S}} if _is_sqlite(url) else {}
        registry = cls(create_engine(url, pool_pre_ping=True, **options))
        if not registry._is_readable(home.path):
            if not create:
                raise NotFoundError(f"the registry of {home.path} is empty; 'hplm root add' fills it")
            registry._prepare()
        return registry

    def close(self) -> None:
        self._engine.dispose()

    @property
    def revision(self) -> int:
        with self._session() as session:
            return _state(session).revision

    # --- roots and domains ---

    def publish_root(
        self, name: str, fingerprint: str, folder: str, domain: str, domain_folder: str, metrics: dict[str, Any]
    ) -> DomainEntry:
        """Add a root together with the first version of its first domain: one is of no use without the other."""
        with self._publication() as (session, _):
            if _root_row(session, check_name(name, "root")):
                raise ConflictError(f"root {name!r} exists already")
            root = RootRow(name=name, fingerprint=fingerprint, folder=folder)
            session.add(root)
            session.flush()
            return _add_domain_version(session, root, domain, domain_folder, None, metrics)

    def has_root(self, name: str) -> bool:
        with self._session() as session:
            return _root_row(session, name) is not None

    def root(self, name: str) -> RootEntry:
        with self._session() as session:
            row = _root_row(session, name)
            if row is None:
                raise NotFoundError(f"root {name!r} does not exist")
            return RootEntry(row.name, row.fingerprint, row.folder)

    def roots(self) -> list[RootEntry]:
        with self._session() as session:
            rows = session.scalars(select(RootRow).order_by(RootRow.name))
            return [RootEntry(row.name, row.fingerprint, row.folder) for row in rows]

    def publish_domain(
        self, root: str, name: str, folder: str, parent: DomainEntry | None, metrics: dict[str, Any]
    ) -> DomainEntry:
        """Make the next version of a domain live."""
        with self._publication() as (session, _):
            root_row = _root_row(session, root)
            if root_row is None:
                raise NotFoundError(f"root {root!r} does not exist")
            return _add_domain_version(session, root_row, name, folder, parent, metrics)

    def domain(self, root: str, name: str, version: int | None = None) -> DomainEntry:
        """The live version of a domain, or the one asked for."""
        with self._session() as session:
            return _domain_entry(_domain_version_row(session, root, name, version))

    def next_domain_version(self, root: str, name: str) -> int:
        with self._session() as session:
            row = _domain_row(session, root, name)
            return row.live_version + 1 if row else 1

    def domains(self, root: str | None = None) -> list[DomainEntry]:
        """The live version of every domain."""
        query = (
            select(DomainVersionRow)
            .join(DomainRow)
            .join(RootRow)
            .where(DomainVersionRow.version == DomainRow.live_version)
            .order_by(RootRow.name, DomainRow.name)
        )
        if root is not None:
            query = query.where(RootRow.name == root)
        with self._session() as session:
            return [_domain_entry(row) for row in session.scalars(query)]

    # --- hPLMs ---

    def publish_hplm(
        self, hplm: str, domain: DomainEntry, task: str, labels: Sequence[str], folder: str, metrics: dict[str, Any]
    ) -> HplmEntry:
        """Make the next version of an hPLM live; servers pick it up within a second."""
        with self._publication() as (session, revision):
            row = _hplm_row(session, check_hplm_id(hplm))
            if row is None:
                row = HplmRow(name=hplm, live_version_id=None, revision=revision)
                session.add(row)
                session.flush()
            version = HplmVersionRow(
                hplm=row,
                version=_last_version(session, row) + 1,
                domain_version=_domain_version_row(session, domain.root, domain.name, domain.version),
                task=task,
                labels=list(labels),
                folder=folder,
                metrics=metrics,
            )
            session.add(version)
            session.flush()
            row.live_version_id, row.revision = version.id, revision
            return _hplm_entry(version)

    def delete_hplm(self, hplm: str) -> HplmEntry:
        """Take an hPLM out of service; its last live version is returned."""
        with self._publication() as (session, revision):
            entry = _hplm_entry(_live_version(session, hplm))
            row = _hplm_row(session, hplm)
            if row is not None:
                row.live_version_id, row.revision = None, revision
            return entry

    def next_hplm_version(self, hplm: str) -> int:
        with self._session() as session:
            row = _hplm_row(session, hplm)
            return _last_version(session, row) + 1 if row else 1

    def has_hplm(self, hplm: str) -> bool:
        with self._session() as session:
            row = _hplm_row(session, hplm)
            return row is not None and row.live_version_id is not None

    def hplm(self, hplm: str) -> HplmEntry:
        with self._session() as session:
            return _hplm_entry(_live_version(session, hplm))

    def hplms(self) -> list[HplmEntry]:
        with self._session() as session:
            return [_hplm_entry(row) for row in session.scalars(_live_versions().order_by(HplmRow.name))]

    def hplm_changes(self, after_revision: int) -> tuple[int, list[HplmEntry], list[str]]:
        """What changed since a revision: the revision now, the entries gone live, the IDs deleted."""
        with self._session() as session:
            revision = _state(session).revision
            if revision == after_revision:
                return revision, [], []
            changed = HplmRow.revision > after_revision
            deleted = select(HplmRow.name).where(changed, HplmRow.live_version_id.is_(None))
            entries = [_hplm_entry(row) for row in session.scalars(_live_versions().where(changed))]
            return revision, entries, list(session.scalars(deleted))

    def hplm_version(self, key: int) -> HplmEntry:
        """The version with this key, live or not."""
        with self._session() as session:
            row = session.get(HplmVersionRow, key)
            if row is None:
                raise NotFoundError(f"hPLM version {key} does not exist")
            return _hplm_entry(row)

    # --- inside ---

    def _is_readable(self, path: Path) -> bool:
        """Whether there is a registry at all; one of a newer release is refused before anything is written."""
        with _clear_database_errors():
            if not inspect(self._engine).has_table(State.__tablename__):
                return False
        with self._session() as session:
            state = session.get(State, 1)
            if state is not None and state.format_version > REGISTRY_FORMAT_VERSION:
                raise FormatVersionError(
                    f"home {path} was written by a newer release (format {state.format_version}; "
                    f"this one reads up to {REGISTRY_FORMAT_VERSION}), so upgrade hplm"
                )
            return state is not None

    def _prepare(self) -> None:
        with _clear_database_errors():
            Base.metadata.create_all(self._engine)
        with self._session() as session:
            session.add(State(id=1, format_version=REGISTRY_FORMAT_VERSION, revision=0))

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with _clear_database_errors(), Session(self._engine, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def _publication(self) -> Iterator[tuple[Session, int]]:
        """A writing transaction and its revision.

        Counting up comes first: an update before any read makes writers wait for each other, also in SQLite, and
        so revisions grow in the order of commits.
        """
        with self._session() as session:
            session.execute(update(State).values(revision=State.revision + 1))
            yield session, _state(session).revision


@contextmanager
def _clear_database_errors() -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise UnavailableError(f"the registry cannot be reached: {error.orig}") from error
    except DBAPIError as error:
        raise ConflictError(f"the registry refused the change: {error.orig}") from error


def _is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def _require_file(url: URL, path: Path) -> None:
    """Connecting would make the file of an SQLite registry, and reading makes nothing."""
    if _is_sqlite(url) and url.database and not Path(url.database).exists():
        raise NotFoundError(f"there is no home at {path}: {url.database} is missing; 'hplm root add' makes one")


def _add_domain_version(
    session: Session, root: RootRow, name: str, folder: str, parent: DomainEntry | None, metrics: dict[str, Any]
) -> DomainEntry:
    domain = _domain_row(session, root.name, check_name(name, "domain"))
    if domain is None:
        domain = DomainRow(root=root, name=name, live_version=0)
        session.add(domain)
    parent_row = _domain_version_row(session, root.name, parent.name, parent.version) if parent else None
    version = DomainVersionRow(
        domain=domain, version=domain.live_version + 1, parent=parent_row, folder=folder, metrics=metrics
    )
    domain.live_version += 1
    session.add(version)
    session.flush()
    return _domain_entry(version)


def _state(session: Session) -> State:
    return session.scalars(select(State)).one()


def _root_row(session: Session, name: str) -> RootRow | None:
    return session.scalars(select(RootRow).where(RootRow.name == name)).one_or_none()


def _domain_row(session: Session, root: str, name: str) -> DomainRow | None:
    query = select(DomainRow).join(RootRow).where(RootRow.name == root, DomainRow.name == name)
    return session.scalars(query).one_or_none()


def _domain_version_row(session: Session, root: str, name: str, version: int | None) -> DomainVersionRow:
    domain = _domain_row(session, root, name)
    if domain is None:
        raise NotFoundError(f"domain {name!r} of root {root!r} does not exist")
    wanted = version if version is not None else domain.live_version
    query = select(DomainVersionRow).where(DomainVersionRow.domain == domain, DomainVersionRow.version == wanted)
    row = session.scalars(query).one_or_none()
    if row is None:
        raise NotFoundError(f"domain {name!r} has no version {wanted}")
    return row


def _domain_entry(row: DomainVersionRow) -> DomainEntry:
    folders = []
    ancestor: DomainVersionRow | None = row
    while ancestor is not None:
        folders.append(ancestor.folder)
        ancestor = ancestor.parent
    return DomainEntry(row.domain.root.name, row.domain.name, row.version, tuple(folders), row.metrics)


def _hplm_row(session: Session, hplm: str) -> HplmRow | None:
    return session.scalars(select(HplmRow).where(HplmRow.name == hplm)).one_or_none()


def _live_versions() -> Select[HplmVersionRow]:
    query = select(HplmVersionRow).join(HplmRow, HplmRow.live_version_id == HplmVersionRow.id)
    return query.options(contains_eager(HplmVersionRow.hplm))


def _live_version(session: Session, hplm: str) -> HplmVersionRow:
    row = session.scalars(_live_versions().where(HplmRow.name == hplm)).one_or_none()
    if row is None:
        raise NotFoundError(f"hPLM {hplm!r} does not exist")
    return row


def _last_version(session: Session, row: HplmRow) -> int:
    versions = session.scalars(select(HplmVersionRow.version).where(HplmVersionRow.hplm_id == row.id))
    return max(versions, default=0)


def _hplm_entry(row: HplmVersionRow) -> HplmEntry:
    return HplmEntry(
        key=row.id,
        id=row.hplm.name,
        version=row.version,
        task=row.task,
        labels=tuple(row.labels),
        domain=_domain_entry(row.domain_version),
        folder=row.folder,
        metrics=row.metrics,
    )
