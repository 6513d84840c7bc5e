"""The audit log: an entry for every change of the registry, written in the transaction that makes the change.

Entries are numbered, and each has a digest of itself and of the entry before. So an entry that somebody changes,
removes or puts in by hand is found. An end that was cut off is found, too: the registry has the number of the last
entry, and the last entry has the registry's revision.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVarTuple

from sqlalchemy import Select, select, true, update
from sqlalchemy.orm import Session

from backends.errors import CorruptFileError, shown
from backends.registry.database import Database
from backends.registry.rows import row_fields
from backends.registry.schema import AuditEndRow, AuditRow, State

_Columns = TypeVarTuple("_Columns")
_NO_DIGEST = ""
_HPLM_JOB = "hplm:"
"""What the targets of jobs about hPLMs begin with; others are about roots and domains."""
_MOST_TOLD = 5
"""Faults in one line."""
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
        """Whether it is about a tenant: one of its hPLMs, a job about one, its quota, or a token for it."""
        match self.action.partition(".")[0]:
            case "hplm" | "quota":
                name = self.target
            case "token":
                name = self.target.rpartition(" of ")[2]
            case "job" if self.target.startswith(_HPLM_JOB):
                name = self.target.removeprefix(_HPLM_JOB)
            case _:
                return False
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
    revision, last_number = session.execute(_end(select(State.revision, AuditEndRow.number))).one()
    last = session.execute(select(AuditRow.number, AuditRow.digest).order_by(AuditRow.number.desc()).limit(1)).first()
    number, digest = (last.number, last.digest) if last else (0, _NO_DIGEST)
    # The registry's number is the greater one where the end was cut off, so that the gap stays; the log's is where a
    # process of an earlier release has written, which does not count.
    number = max(number, last_number or 0) + 1
    entry = AuditEntry(
        number,
        time.time(),
        who or _ACTOR.get() or _user(),
        action,
        target,
        None if before is None else str(before),
        None if after is None else str(after),
        revision,
    )
    session.add(AuditRow(**asdict(entry), digest=entry.digest(digest)))
    session.execute(update(AuditEndRow).values(number=number))
    session.flush()


@dataclass(frozen=True)
class CheckedLog:
    """The whole log, the oldest entry first, and what somebody has changed in it by hand.

    Attributes:
        marks: What is wrong with an entry or just before it, by its number.
        faults: All that is wrong, in the order of the log; empty for a sound one.
    """

    entries: Sequence[AuditEntry]
    marks: Mapping[int, str]
    faults: Sequence[str]

    def require_sound(self) -> None:
        """Check that nothing is wrong with it.

        Raises:
            CorruptFileError: The log was changed by hand.
        """
        if self.faults:
            told, more = ", ".join(self.faults[:_MOST_TOLD]), len(self.faults) - _MOST_TOLD
            raise CorruptFileError(
                f"the audit log was changed by hand: {told}" + (f", and {more} more faults" if more > 0 else "")
            )


class AuditLog:
    """Reads the log and checks it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> CheckedLog:
        """Return all of the log; an entry that was changed by hand is as it is now."""
        # One statement: no change comes between the log and the state.
        query = _end(select(AuditRow, State.revision, AuditEndRow.number.label("last_number")))
        query = query.outerjoin(AuditRow, true()).order_by(AuditRow.number)
        with self._database.reading() as session:
            found: Sequence[Any] = session.execute(query).all()
        rows, state = [row for row, *_ in found if row is not None], row_fields(found[0], "its state")
        if state.get("last_number") is None:
            log = _checked(rows, state.whole("revision"), 0)
            return replace(log, faults=[*log.faults, "the number of its last entry is missing"])
        return _checked(rows, state.whole("revision"), state.whole("last_number"))


def _end(query: Select[*_Columns]) -> Select[*_Columns]:
    """Join the registry's state and the number of the last entry; that is NULL where somebody removed it."""
    return query.select_from(State).outerjoin(AuditEndRow, AuditEndRow.id == State.id)


def _checked(rows: Sequence[AuditRow], revision: int, last_number: int) -> CheckedLog:
    entries: list[AuditEntry] = []
    marks: dict[int, str] = {}
    faults: list[str] = []
    digest, wanted = _NO_DIGEST, 1
    for row in rows:
        try:
            entry = _entry(row)
        except CorruptFileError as error:
            faults.append(f"entry {shown(row.number)} cannot be read ({error})")
        else:
            entries.append(entry)
            if wanted < row.number and wanted <= last_number:
                missing = _missing(wanted, min(row.number - 1, last_number))
                faults.append(missing)
                marks[entry.number] = f"before it, {missing}"
            elif row.number != wanted or row.digest != entry.digest(digest):
                marks[entry.number] = "not as it was written"
                faults.append(f"entry {entry.number} is not as it was written")
        # What follows is checked against the digest that stands here: one change does not mark all that follow.
        digest, wanted = str(row.digest), max(wanted, row.number + 1) if isinstance(row.number, int) else wanted
    ends_at = entries[-1].revision if entries else 0
    if wanted <= last_number:
        faults.append(f"at its end, {_missing(wanted, last_number)}")
    elif ends_at != revision and (not entries or entries[-1].number not in marks):
        faults.append(f"it ends at revision {ends_at}, and the registry is at {revision}")
    return CheckedLog(entries, marks, faults)


def _missing(first: int, last: int) -> str:
    return f"entry {first} is missing" if first == last else f"entries {first} to {last} are missing"


def _entry(row: AuditRow) -> AuditEntry:
    fields = row_fields(row, "an audit entry")
    return AuditEntry(
        fields.whole("number"),
        fields.number("at"),
        fields.text("who"),
        fields.text("action"),
        fields.text("target"),
        None if row.before is None else fields.text("before"),
        None if row.after is None else fields.text("after"),
        fields.whole("revision"),
    )


def _user() -> str:
    name = ""
    with suppress(KeyError, OSError, ImportError):  # a user of a container may have none
        name = f" ({getpass.getuser()})"
    return f"uid {os.getuid()}{name} on {socket.gethostname()}"
