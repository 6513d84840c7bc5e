"""Servers that read a registry, and what each may still serve: `hplm gc` leaves that alone, on whichever host."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from backends.process_id import ProcessId
from backends.registry.database import Database
from backends.registry.position import START, Position
from backends.registry.schema import ServerRow

TOLD_EVERY_S = 60.0
"""A server that reads the registry says so at least this often."""


@dataclass(frozen=True)
class ServerEntry:
    """One process of a server.

    Args:
        id: Random.
        name: Host and model instance, for people.
        process: Which process it is.
        position: It may serve any version that was live there or later.
        seen_at: When it said so, in seconds since the epoch.
        serves_for_s: How long it goes on without the registry.
    """

    id: int
    name: str
    process: ProcessId
    position: Position
    seen_at: float
    serves_for_s: float

    @property
    def silent_s(self) -> float:
        return max(0.0, time.time() - self.seen_at)

    def may_serve(self, silence_s: float | None) -> bool:
        """Whether it may still answer: it is not known to have ended, and was heard of within its time, or within this.

        Args:
            silence_s: A server that was silent for this long has ended; None: only those that say so themselves.
        """
        patience_s = self.serves_for_s + TOLD_EVERY_S
        if silence_s is not None:
            patience_s = min(patience_s, silence_s)
        return self.silent_s < patience_s and not self.process.is_known_to_have_ended


class ServerTable:
    """The processes that have told a registry of themselves."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def all(self) -> list[ServerEntry]:
        with self._database.reading() as session:
            return _entries(session)

    def tell(self, entry: ServerEntry) -> None:
        """Add a process, or note its new position."""
        fields = {
            "name": entry.name,
            "machine": entry.process.machine,
            "pid": entry.process.number,
            "start_ticks": entry.process.start_ticks,
            "revision": entry.position.revision,
            "mark": entry.position.mark,
            "seen_at": entry.seen_at,
            "serves_for_s": entry.serves_for_s,
        }
        if not self._database.note(update(ServerRow).where(ServerRow.id == entry.id).values(fields)):
            self._database.note(insert(ServerRow).values(id=entry.id, **fields))

    def forget(self, id: int) -> None:
        """Remove a process that has ended."""
        self._database.note(delete(ServerRow).where(ServerRow.id == id))


def served_from(session: Session, silence_s: float | None) -> int | None:
    """The revision from which on versions may still be served; None where nothing serves.

    It is 0, and no version is free to go, while a server stands in a history that is not this registry's: that was
    restored, or has lost the position long ago.
    """
    positions = [entry.position for entry in _entries(session) if entry.may_serve(silence_s)]
    return min((at.revision if at.leads_to_now(session) else START.revision for at in positions), default=None)


def forget_ended(session: Session, silence_s: float | None) -> None:
    """Remove the processes that serve no more; one that was wrongly removed adds itself again."""
    ended = [entry.id for entry in _entries(session) if not entry.may_serve(silence_s)]
    if ended:
        session.execute(delete(ServerRow).where(ServerRow.id.in_(ended)))


def _entries(session: Session) -> list[ServerEntry]:
    return [
        ServerEntry(
            row.id,
            row.name,
            ProcessId(row.machine, row.pid, row.start_ticks),
            Position(row.revision, row.mark),
            row.seen_at,
            row.serves_for_s,
        )
        for row in session.scalars(select(ServerRow).order_by(ServerRow.name))
    ]
