"""The database under the registry: connecting, short transactions, and clear errors when it is busy or away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, event, make_url, select, update
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from backends.errors import ConflictError, CorruptFileError, InvalidArgumentError, NotFoundError, UnavailableError
from backends.registry.schema import State

PATIENCE_S = 6.0
"""Time for which statements on a busy or unreachable database are retried."""
_FIRST_PAUSE_S = 0.05
_POSTGRES = "postgresql"
_REVISION = select(State.revision)


class Database:
    """Hands out sessions; each is one transaction, whole or not at all."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @classmethod
    def connect(cls, url_text: str) -> Database:
        url = parsed_url(url_text)
        if not is_sqlite(url):
            return cls(_engine(url))
        engine = _engine(url, timeout=PATIENCE_S)
        event.listen(engine, "connect", _enforce_foreign_keys)
        return cls(engine)

    def close(self) -> None:
        self.engine.dispose()

    def let_readers_pass_writers(self) -> None:
        """Keep an SQLite file in write-ahead mode from now on, where its file system can: readers do not wait."""
        if self.engine.dialect.name == "sqlite":
            with self.engine.connect() as connection, suppress(OperationalError):
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")

    def is_at(self, revision: int) -> bool:
        """Whether nothing was published since a revision; False also where the database does not answer at once.

        Servers ask several times a second, so this does without a session, which takes five times as long.
        """
        with suppress(DBAPIError), self.engine.connect() as connection:
            return connection.scalar(_REVISION) == revision
        return False

    @contextmanager
    def reading(self) -> Iterator[Session]:
        with clear_errors(), self._begun(lambda session: session.connection()) as session:
            yield session

    @contextmanager
    def publication(self) -> Iterator[tuple[Session, int]]:
        """A writing transaction and its revision.

        Counting up comes first: an update before any read makes writers wait for each other, also in SQLite, and
        so revisions grow in the order of commits.
        """
        count_up = update(State).values(revision=State.revision + 1)
        with clear_errors(), self._begun(lambda session: session.execute(count_up)) as session:
            yield session, session.get_one(State, 1).revision

    @contextmanager
    def _begun(self, first: Callable[[Session], object]) -> Iterator[Session]:
        """A session whose first statement has worked; only that is tried again, so nothing is ever done twice."""
        with self._patiently(first) as session:
            yield session
            session.commit()

    def _patiently(self, first: Callable[[Session], object]) -> Session:
        gives_up_at, pause_s = time.monotonic() + PATIENCE_S, _FIRST_PAUSE_S
        while True:
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


@contextmanager
def clear_errors() -> Iterator[None]:
    """One line instead of the driver's own words, which may be several."""
    try:
        yield
    except OperationalError as error:
        raise UnavailableError(_why_unavailable(error)) from error
    except DBAPIError as error:
        if "file is not a database" in str(error.orig):
            raise CorruptFileError("the registry's file is not a database; restore it from a backup") from error
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


def require_file(url: URL, home: Path) -> None:
    """Connecting would make the file of an SQLite registry, and reading makes nothing."""
    if is_sqlite(url) and url.database and not Path(url.database).exists():
        raise NotFoundError(f"there is no home at {home}: {url.database} is missing; 'hplm root add' makes one")


def _engine(url: URL, **connect_args: float) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True, connect_args=connect_args)
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


def _why_unavailable(error: OperationalError) -> str:
    reason = _one_line(error)
    if "database is locked" in reason:
        return f"the registry is locked by another process (waited {PATIENCE_S:.0f} s); nothing was changed"
    return f"the registry cannot be reached: {reason}"


def _one_line(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())
