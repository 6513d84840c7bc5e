"""Whether a home's registry is a database that can be read, for `hplm doctor` and `hplm verify`.

Nothing in it is changed, except that a transaction is rolled back in which its writer was killed, as by each command.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from backends.errors import InvalidArgumentError
from backends.home import REGISTRY_VARIABLE, Home
from backends.registry.database import PATIENCE_S, is_sqlite, parsed_url
from backends.registry.schema import State

_RESTORE = "put it back from a backup, see docs/how-to/back-up.md"
_OTHER_URL = f"set {REGISTRY_VARIABLE} to a URL that SQLAlchemy knows, or to none"
_LET_READ = "let this user read and write it, end what holds it, or mend the disk"


class RegistryState(NamedTuple):
    """What was found, in one line, and what to do; nothing where nothing needs to be done."""

    found: str
    remedy: str = ""


def registry_state(home: Home) -> RegistryState:
    """Read an SQLite registry; one in another database is not looked at."""
    try:
        url = parsed_url(home.registry_url)
    except InvalidArgumentError as error:
        return RegistryState(str(error), _OTHER_URL)
    if not is_sqlite(url):
        return RegistryState("in another database, not looked at")
    if not url.database:
        return RegistryState(f"{REGISTRY_VARIABLE} names no file", _OTHER_URL)
    path = Path(url.database)
    try:
        return _state_of(path) if path.exists() else _state_without_file(home, path)
    except (OSError, sqlite3.OperationalError) as error:
        return RegistryState(f"{path} cannot be read: {error}", _LET_READ)
    except sqlite3.DatabaseError as error:
        return _damaged(path, str(error))


def _state_of(path: Path) -> RegistryState:
    with closing(sqlite3.connect(f"{path.as_uri()}?{_mode(path)}", uri=True, timeout=PATIENCE_S)) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            return _damaged(path, str(found))
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    is_registry = (State.__tablename__,) in tables
    return RegistryState("no fault found") if is_registry else _damaged(path, "it has no tables of a registry")


def _mode(path: Path) -> str:
    if path.with_name(f"{path.name}-journal").exists():
        return "mode=rw"  # what a killed writer left there belongs to the content, and SQLite rolls it back to read
    if path.with_name(f"{path.name}-wal").exists():
        return "mode=ro"
    # Without such files no program has it open, and reading it as any other file leaves no new ones behind.
    return "mode=ro&immutable=1"


def _state_without_file(home: Home, path: Path) -> RegistryState:
    return RegistryState(f"{path} is missing", _RESTORE) if home.holds_models else RegistryState("not made yet")


def _damaged(path: Path, fault: str) -> RegistryState:
    return RegistryState(f"{path} is damaged: {' '.join(fault.split())}", _RESTORE)
