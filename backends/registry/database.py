"""The database under the registry: connecting, short transactions, and clear errors when it is busy or away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Connection,
    CursorResult,
    Dialect,
    Engine,
    Result,
    UpdateBase,
    create_engine,
    delete,
    event,
    make_url,
    update,
)
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from backends.errors import ConflictError, CorruptFileError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.home import Home
from backends.registry.position import KEPT_PUBLICATIONS, Position, position_query
from backends.registry.rows import read_json_column
from backends.registry.schema import PublicationRow, State

NO_HOME_REMEDY = "'hplm root add' makes one, --home or HPLM_HOME names another"
PATIENCE_S = 6.0
"""Time for which a busy, silent or unreachable database is waited for, unless a caller has less."""
_STATEMENT_S = 30.0
"""Longest time that one statement may compute on an SQLite file."""
_STATEMENT_STEPS = 100_000
"""SQLite looks at the time after so many steps of its own, some milliseconds."""
_LEAST_CONNECT_S = 2
"""Less is taken for this by PostgreSQL's client."""
_FIRST_PAUSE_S = 0.05
_POSTGRES = "postgresql"
_DAMAGED = ("file is not a database", "malformed")
_DISK_FULL = ("database or disk is full", "No space left on device")
"""SQLite's words, and PostgreSQL's."""
_STARTED_S = "started_s"
_POSITION = position_query()


class Database:
    """Hands out sessions; each is one transaction, whole or not at all. No statement waits for ever."""

    def __init__(self, engine: Engine, patience_s: float, file: Path | None = None) -> None:
        self.engine = engine
        self._patience_s = patience_s
        self._file = file
        self._file_id: tuple[int, int] | None = None

    @classmethod
    def connect(cls, url_text: str, patience_s: float | None = None) -> Database:
        """Prepare for connections; the first statement connects.

        Args:
            url_text: Any SQLAlchemy URL.
            patience_s: How long a busy, silent or unreachable database is waited for; None: `PATIENCE_S`.
        """
        url, patience_s = parsed_url(url_text), PATIENCE_S if patience_s is None else patience_s
        if is_sqlite(url):
            engine = _engine(url, timeout=patience_s)
            event.listen(engine, "connect", _enforce_foreign_keys)
            event.listen(engine, "connect", _limit_statements)
            event.listen(engine, "before_cursor_execute", _note_start)
            return cls(engine, patience_s, Path(url.database) if url.database else None)
        if url.drivername == f"{_POSTGRES}+psycopg":
            engine = _engine(url, connect_timeout=max(_LEAST_CONNECT_S, math.ceil(patience_s)))
            event.listen(engine, "do_connect", _connector(patience_s))
        else:
            engine = _engine(url)
        return cls(engine, patience_s)

    def close(self) -> None:
        self.engine.dispose()

    def let_readers_pass_writers(self) -> None:
        """Keep an SQLite file in write-ahead mode from now on, where its file system can: readers do not wait."""
        if self.engine.dialect.name == "sqlite":
            with self.engine.connect() as connection, suppress(OperationalError):
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")

    def is_at(self, position: Position) -> bool:
        """Whether nothing was published since a position, and the database is still the same.

        Servers ask several times a second, so this does without a session, which takes five times as long, and a
        database that is away is not asked again.
        """
        self.leave_replaced_file()
        with clear_errors(), self.engine.connect() as connection:
            return connection.execute(_POSITION).one() == position

    def reading(self) -> AbstractContextManager[Session]:
        return self.transaction()

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction that may also write what is no publication, so that no reader looks again."""
        with clear_errors(), self._begun(lambda session: session.connection()) as session:
            yield session

    def note(self, statement: UpdateBase) -> int:
        """Write what is no publication, so that no reader looks again; return how many rows it is about."""
        noted: list[int] = []
        with clear_errors(), self._begun(lambda session: noted.append(_rows(session.execute(statement)))):
            return noted[-1]

    @contextmanager
    def publication(self) -> Iterator[tuple[Session, int]]:
        """A writing transaction and its revision.

        Counting up comes first: an update before any read makes writers wait for each other, also in SQLite, and
        so revisions grow in the order of commits.
        """
        count_up = update(State).values(revision=State.revision + 1)
        with clear_errors(), self._begun(lambda session: session.execute(count_up)) as session:
            revision = session.get_one(State, 1).revision
            yield session, revision
            session.execute(delete(PublicationRow).where(PublicationRow.revision <= revision - KEPT_PUBLICATIONS))
            session.add(PublicationRow(revision=revision))

    @contextmanager
    def _begun(self, first: Callable[[Session], object]) -> Iterator[Session]:
        """A session whose first statement has worked; only that is tried again, so nothing is ever done twice."""
        with self._patiently(first) as session:
            yield session
            session.commit()

    def _patiently(self, first: Callable[[Session], object]) -> Session:
        gives_up_at, pause_s = time.monotonic() + self._patience_s, _FIRST_PAUSE_S
        while True:
            self.leave_replaced_file()
            session = Session(self.engine, expire_on_commit=False)
            try:
                first(session)
                return session
            except OperationalError:
                session.close()
                if time.monotonic() + pause_s > gives_up_at:
                    raise
            except BaseException:
                session.close()
                raise
            time.sleep(pause_s)
            pause_s *= 2

    def leave_replaced_file(self) -> None:
        """Close the connections to an SQLite file once another one is in its place: they would stay on the old one.

        Raises:
            UnavailableError: The file is gone. Connecting would make an empty one.
        """
        if self._file is None:
            return
        try:
            found = self._file.stat()
        except OSError as error:
            if self._file_id is None:
                return
            raise UnavailableError(f"the registry cannot be reached: its file is gone ({error.strerror})") from error
        file_id = found.st_dev, found.st_ino
        if self._file_id not in (None, file_id):
            self.engine.dispose()
        self._file_id = file_id


@contextmanager
def clear_errors() -> Iterator[None]:
    """One line instead of the driver's own words, which may be several."""
    try:
        yield
    except OperationalError as error:
        raise UnavailableError(_why_unavailable(error)) from error
    except UnicodeDecodeError as error:
        raise CorruptFileError("the registry is damaged: it holds what is no text; restore it from a backup") from error
    except DBAPIError as error:
        if any(words in str(error.orig) for words in _DAMAGED):
            raise CorruptFileError(f"the registry is damaged: {_one_line(error)}; restore it from a backup") from error
        raise ConflictError(f"the registry rejected the change: {_one_line(error)}") from error


def is_sqlite(url: URL) -> bool:
    return url.get_backend_name() == "sqlite"


def parsed_url(text: str) -> URL:
    try:
        url = make_url(text)
    except ArgumentError as error:
        raise InvalidArgumentError("the registry's URL cannot be read; see HPLM_REGISTRY_URL") from error
    if is_sqlite(url) and url.database and not Path(url.database).is_absolute():
        # A server's models run in a folder of their own, and would look there.
        raise InvalidArgumentError(
            f"the registry's file {url.database!r} must be an absolute path: sqlite:////folder/{url.database}"
        )
    return url.set(drivername=f"{_POSTGRES}+psycopg") if url.drivername in (_POSTGRES, "postgres") else url


def require_file(url: URL, home: Home) -> None:
    """Connecting would make the file of an SQLite registry, and reading makes nothing."""
    if is_sqlite(url) and url.database and not Path(url.database).exists():
        if home.holds_models:
            raise NotFoundError(f"home {home.path} lacks its registry, {url.database}; put it back from a backup")
        raise NotFoundError(f"there is no home at {home.path}: {url.database} is missing; {NO_HOME_REMEDY}")


def _engine(url: URL, **connect_args: float) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True, connect_args=connect_args, json_deserializer=read_json_column)
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            f"a registry at {url.get_backend_name()} needs the Python package {error.name!r}; "
            "for PostgreSQL install hplm[postgres]"
        ) from error
    except NoSuchModuleError as error:
        raise InvalidArgumentError(f"no driver for a registry at {url.get_backend_name()!r}") from error


def _enforce_foreign_keys(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _note_start(connection: Connection, *_: object) -> None:
    connection.info[_STARTED_S] = time.monotonic()


def _limit_statements(connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    """Interrupt statements that compute for too long."""
    info = entry.info

    def is_over() -> bool:
        return bool(time.monotonic() - info.get(_STARTED_S, math.inf) > _STATEMENT_S)

    connection.set_progress_handler(is_over, _STATEMENT_STEPS)


def _connector(patience_s: float) -> Callable[..., DBAPIConnection]:
    """Make connections to PostgreSQL that a silent server does not hold."""
    from backends.registry.postgres import ImpatientConnection

    def connect(_dialect: Dialect, _entry: ConnectionPoolEntry, arguments: list[Any], named: dict[str, Any]) -> Any:
        return ImpatientConnection.after(patience_s, *arguments, **named)

    return connect


def _why_unavailable(error: OperationalError) -> str:
    reason = _one_line(error)
    if "database is locked" in reason:
        return "the registry is locked by another process, for longer than is waited; nothing was changed"
    if reason == "interrupted":
        return f"the registry computed for more than {_STATEMENT_S:.0f} s; nothing was changed"
    if any(words in reason for words in _DISK_FULL):
        return "the disk of the registry is full; nothing was changed"
    return f"the registry cannot be reached: {reason}"


def _rows(result: Result[Any]) -> int:
    return result.rowcount if isinstance(result, CursorResult) else 0


def _one_line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())
