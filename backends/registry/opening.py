"""Opening a home's registry: found, made, or brought to this release's format."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sqlalchemy import inspect

from backends.errors import FormatVersionError, NotFoundError
from backends.home import Home
from backends.registry.database import NO_HOME_REMEDY, Database, clear_errors, parsed_url, require_file
from backends.registry.migration import migrate
from backends.registry.rows import row_fields
from backends.registry.schema import REGISTRY_FORMAT_VERSION, AuditEndRow, Base, State


def open_database(home: Home, create: bool) -> Database:
    """Connect to a home's registry; `create` makes the home where there is none."""
    if create:
        home.path.mkdir(parents=True, exist_ok=True)
    elif not home.path.is_dir():
        raise NotFoundError(f"there is no home at {home.path}; {NO_HOME_REMEDY}")
    else:
        require_file(parsed_url(home.registry_url), home)
    database = Database.connect(home.registry_url)
    format_version = _format_version(database, home.path)
    if format_version is None:
        if not create:
            remedy = "put it back from a backup" if home.holds_models else "'hplm root add' fills it"
            raise NotFoundError(f"the registry of {home.path} is empty; {remedy}")
        _prepare(database)
    elif format_version < REGISTRY_FORMAT_VERSION:
        database.let_readers_pass_writers()
        with suppress(_MigratedMeanwhileError), database.publication() as (session, _):
            if not migrate(session):
                raise _MigratedMeanwhileError  # or there would be a revision that the audit log knows nothing of
    return database


class _MigratedMeanwhileError(Exception):
    """Another process was faster."""


def _format_version(database: Database, path: Path) -> int | None:
    """Read the format version, None where there is no registry; reject a newer one before anything is written."""
    with database.reading() as session:
        if not inspect(session.connection()).has_table(State.__tablename__):
            return None
        state = session.get(State, 1)
        if state is None:
            return None
        version = row_fields(state, "its state").whole("format_version")
        if version > REGISTRY_FORMAT_VERSION:
            raise FormatVersionError(
                f"home {path} was written by a newer release (format {version}; "
                f"this one reads up to {REGISTRY_FORMAT_VERSION}), so upgrade hplm"
            )
        return version


def _prepare(database: Database) -> None:
    with clear_errors():
        database.let_readers_pass_writers()
        Base.metadata.create_all(database.engine)
    with database.reading() as session:
        if session.get(State, 1) is None:
            session.add(State(id=1, format_version=REGISTRY_FORMAT_VERSION, revision=0))
            session.add(AuditEndRow(id=1, number=0))
