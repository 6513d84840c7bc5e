"""Opening a home's registry: found, made, or brought to this release's format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL, inspect

from backends.errors import FormatVersionError, NotFoundError, UnavailableError
from backends.home import Home
from backends.registry.database import NO_HOME_REMEDY, Database, clear_errors, is_sqlite, parsed_url, require_file
from backends.registry.migration import migrate
from backends.registry.rows import row_fields
from backends.registry.schema import REGISTRY_FORMAT_VERSION, AuditEndRow, Base, State
from backends.storage import why_not_writable

_UNWRITABLE = ("unable to open database file", "readonly database")
"""SQLite's words."""


def open_database(home: Home, create: bool) -> Database:
    """Connect to a home's registry; `create` makes the home where there is none."""
    if create:
        home.path.mkdir(parents=True, exist_ok=True)
    elif not home.path.is_dir():
        raise NotFoundError(f"there is no home at {home.path}; {NO_HOME_REMEDY}")
    else:
        require_file(parsed_url(home.registry_url), home)
    database = Database.connect(home.registry_url)
    with _unwritable_file_is_named(parsed_url(home.registry_url)):
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


@contextmanager
def _unwritable_file_is_named(url: URL) -> Iterator[None]:
    """SQLite says neither where it cannot write nor that it has to, to read a file in write-ahead mode."""
    try:
        yield
    except UnavailableError as error:
        if not is_sqlite(url) or not url.database or not any(words in str(error) for words in _UNWRITABLE):
            raise
        file = Path(url.database)
        for path in (file, file.parent):
            if (code := why_not_writable(path)) is not None:
                raise UnavailableError(
                    f"the registry cannot be reached: SQLite has to write {path} to read it, and cannot "
                    f"({os.strerror(code)}); make it writable, or keep the registry in PostgreSQL"
                ) from error
        raise


def _prepare(database: Database) -> None:
    with clear_errors():
        database.let_readers_pass_writers()
        Base.metadata.create_all(database.engine)
    with database.reading() as session:
        if session.get(State, 1) is None:
            session.add(State(id=1, format_version=REGISTRY_FORMAT_VERSION, revision=0))
            session.add(AuditEndRow(id=1, number=0))
