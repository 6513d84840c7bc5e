"""Where a reader stands in the registry's history, and whether that history is still the one that it has read."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from backends.registry.schema import PublicationRow, State

KEPT_PUBLICATIONS = 10_000
"""A reader that has missed more of them reads everything again."""


class Position(NamedTuple):
    """A revision and its mark, by which two histories differ; None where an older release wrote the revision."""

    revision: int
    mark: int | None

    def leads_to_now(self, session: Session) -> bool:
        """Whether the registry has gone on from here; not where it was restored, or replaced by another."""
        mark = select(PublicationRow.mark).where(PublicationRow.revision == self.revision)
        return self.mark is not None and session.scalar(mark) == self.mark


START = Position(0, None)
"""Before anything was read."""


def position_query() -> Select[int, int]:
    """Make the query of the position now; its mark may be NULL."""
    joined = select(State.revision, PublicationRow.mark)
    return joined.outerjoin(PublicationRow, PublicationRow.revision == State.revision)
