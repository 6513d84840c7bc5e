"""Whether a home's registry is a database that can be read, for `hplm doctor`; nothing in it is changed."""

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
_LET_READ = "let this user read and write it, end what holds it, or mend the disk"


class RegistryFault(NamedTuple):
    """What is wrong, in one line, and what to do."""

    found: str
    remedy: str


def registry_fault(home: Home) -> RegistryFault | None:
    """Read an SQLite registry; None where it is sound, not made yet, or in another database."""
    try:
        url = parsed_url(home.registry_url)
    except InvalidArgumentError as error:
        return RegistryFault(str(error), f"set {REGISTRY_VARIABLE} to a URL that SQLAlchemy knows, or to none")
    path = Path(url.database or "")
    if not is_sqlite(url) or not path.exists():
        is_lost = is_sqlite(url) and home.holds_models
        return RegistryFault(f"{path} is missing", _RESTORE) if is_lost else None
    try:
        fault = _fault_in(path)
    except sqlite3.OperationalError as error:
        return RegistryFault(f"{path} cannot be read: {error}", _LET_READ)
    except sqlite3.DatabaseError as error:
        fault = str(error)
    return None if fault is None else RegistryFault(f"{path} is damaged: {' '.join(fault.split())}", _RESTORE)


def _fault_in(path: Path) -> str | None:
    # Without a log of writes nobody has it open, and reading it as any other file leaves no new log behind.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.as_uri()}?{mode}", uri=True, timeout=PATIENCE_S)) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            return str(found)
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return None if (State.__tablename__,) in tables else "it has no tables of a registry"
