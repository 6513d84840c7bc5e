"""The audit log: an entry for every change of the registry, written in the transaction that makes the change.

Entries are numbered, and each has a digest of itself and of the entry before. So an entry that somebody changes,
removes or puts in by hand is found, and so is an end that was cut off: the last entry is that of the registry's
revision.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backends.errors import CorruptFileError
from backends.registry.database import Database
from backends.registry.schema import AuditRow, State

_NO_DIGEST = ""
_ACTOR: ContextVar[str | None] = ContextVar("actor", default=None)


@dataclass(frozen=True)
class AuditEntry:
    """One change.

    Attributes:
        number: Counts from 1, without gaps.
        at: Seconds since the epoch.
        who: A user of a machine, a token by its ID, or a job of the manager.
        before: What the change has replaced, a version, say; None where there was nothing.
        after: What it has put there.
        revision: Of the registry, after the change.
    """

    number: int
    at: float
    who: str
    action: str
    target: str
    before: str | None
    after: str | None
    revision: int

    def is_about(self, tenant: str) -> bool:
        """Whether it is about a tenant: one of its hPLMs or jobs, its quota, or a token for it."""
        name = self.target.rpartition(" ")[2].rpartition(":")[2]
        return name.partition("/")[0] == tenant

    def digest(self, before: str) -> str:
        """Return the digest of this entry behind the one with the digest `before`."""
        content = json.dumps([before, *asdict(self).values()], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(content.encode("ascii")).hexdigest()


@contextmanager
def acting_as(who: str) -> Iterator[None]:
    """Name who makes the changes of this thread; otherwise it is the user of the process."""
    token = _ACTOR.set(who)
    try:
        yield
    finally:
        _ACTOR.reset(token)


def note(
    session: Session,
    action: str,
    target: str,
    before: object = None,
    after: object = None,
    who: str | None = None,
) -> None:
    """Write an entry about a change that the session makes."""
    # Writers wait for each other here, if they have not yet: numbers are given one after another.
    session.execute(update(State).values(revision=State.revision))
    last = session.execute(select(AuditRow.number, AuditRow.digest).order_by(AuditRow.number.desc()).limit(1)).first()
    number, digest = (last.number, last.digest) if last else (0, _NO_DIGEST)
    entry = AuditEntry(
        number + 1,
        time.time(),
        who or _ACTOR.get() or _user(),
        action,
        target,
        None if before is None else str(before),
        None if after is None else str(after),
        session.scalars(select(State.revision)).one(),
    )
    session.add(AuditRow(**asdict(entry), digest=entry.digest(digest)))
    session.flush()


class AuditLog:
    """Reads the log; an entry that is not as it was written is an error."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entries(self, since: float = 0.0) -> list[AuditEntry]:
        """Return the entries since a time, the oldest first, once all of the log is checked.

        Raises:
            CorruptFileError: The log was changed by hand.
        """
        with self._database.reading() as session:
            revision = session.scalars(select(State.revision)).one()
            rows = session.scalars(select(AuditRow).order_by(AuditRow.number)).all()
        entries, digest = [], _NO_DIGEST
        for number, row in enumerate(rows, start=1):
            entry = _entry(row)
            digest = entry.digest(digest)
            if row.number != number or row.digest != digest:
                raise CorruptFileError(f"the audit log was changed by hand: entry {number} is not as it was written")
            entries.append(entry)
        last = entries[-1].revision if entries else 0
        if last != revision:
            raise CorruptFileError(
                f"the audit log was changed by hand: it ends at revision {last}, and the registry is at {revision}"
            )
        return [entry for entry in entries if entry.at >= since]


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(row.number, row.at, row.who, row.action, row.target, row.before, row.after, row.revision)


def _user() -> str:
    name = ""
    with suppress(KeyError, OSError, ImportError):  # a user of a container may have none
        name = f" ({getpass.getuser()})"
    return f"uid {os.getuid()}{name} on {socket.gethostname()}"
