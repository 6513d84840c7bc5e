"""Bringing a registry of an older release to this one's format.

Columns and tables are only added, so that a server of the older release that still runs goes on reading.
"""

from __future__ import annotations

import time

from sqlalchemy import bindparam, select, text, update
from sqlalchemy.orm import Session

from backends.registry.audit import note
from backends.registry.schema import REGISTRY_FORMAT_VERSION, Base, DomainVersionRow, State

_FROM_1 = (
    "ALTER TABLE roots ADD COLUMN deleted_at FLOAT",
    "ALTER TABLE domains ADD COLUMN deleted_at FLOAT",
    "ALTER TABLE domains ADD COLUMN last_version INTEGER NOT NULL DEFAULT 0",
    "UPDATE domains SET last_version = live_version",
    "ALTER TABLE domain_versions ADD COLUMN folders JSON NOT NULL DEFAULT '[]'",
    "ALTER TABLE domain_versions ADD COLUMN published_at FLOAT",
    "ALTER TABLE domain_versions ADD COLUMN retired_at FLOAT",
    """UPDATE domain_versions SET retired_at = :now
       WHERE version <> (SELECT live_version FROM domains WHERE domains.id = domain_id)""",
    "ALTER TABLE hplms ADD COLUMN last_version INTEGER NOT NULL DEFAULT 0",
    """UPDATE hplms SET last_version =
       (SELECT COALESCE(MAX(version), 0) FROM hplm_versions WHERE hplm_id = hplms.id)""",
    "ALTER TABLE hplms ADD COLUMN pinned_id INTEGER REFERENCES domain_versions (id)",
    "ALTER TABLE hplm_versions ADD COLUMN pair BOOLEAN NOT NULL DEFAULT FALSE",
    "ALTER TABLE hplm_versions ADD COLUMN published_at FLOAT",
    "ALTER TABLE hplm_versions ADD COLUMN retired_at FLOAT",
    """UPDATE hplm_versions SET retired_at = :now
       WHERE id NOT IN (SELECT live_version_id FROM hplms WHERE live_version_id IS NOT NULL)""",
    "CREATE INDEX ix_hplm_versions_domain_version_id ON hplm_versions (domain_version_id)",
)
_FROM_3 = tuple(
    f"ALTER TABLE quotas ADD COLUMN {name} BIGINT" for name in ("upload_bytes", "running_jobs", "jobs_per_day")
)
_FROM_4 = "INSERT INTO audit_end (id, number) SELECT 1, COALESCE(MAX(number), 0) FROM audit"
_FROM_5 = "ALTER TABLE hplm_versions ADD COLUMN retired_revision BIGINT"


def migrate(session: Session) -> bool:
    """Bring the registry up to date within a writing transaction; False where another process was faster."""
    state = session.get_one(State, 1, populate_existing=True)
    if state.format_version >= REGISTRY_FORMAT_VERSION:
        return False
    if state.format_version < 2:
        for statement in _FROM_1:
            session.execute(text(statement), {"now": time.time()} if ":now" in statement else {})
        _fill_folders(session)
    if state.format_version == 3:
        for statement in _FROM_3:
            session.execute(text(statement))
    Base.metadata.create_all(session.connection())  # the tables that are missing
    if state.format_version < 5:
        session.execute(text(_FROM_4))
    if state.format_version < 6:
        session.execute(text(_FROM_5))
    note(session, "registry.migrate", "registry", state.format_version, REGISTRY_FORMAT_VERSION)
    state.format_version = REGISTRY_FORMAT_VERSION
    return True


def _fill_folders(session: Session) -> None:
    """Format 1 read a domain's folders off its chain of parents."""
    rows = session.execute(select(DomainVersionRow.id, DomainVersionRow.folder, DomainVersionRow.parent_id)).all()
    by_id = {row.id: row for row in rows}
    filled = []
    for row in rows:
        folders, ancestor = [row.folder], row.parent_id
        while ancestor is not None:
            folders.append(by_id[ancestor].folder)
            ancestor = by_id[ancestor].parent_id
        filled.append({"row_id": row.id, "row_folders": folders})
    if filled:
        statement = update(DomainVersionRow).where(DomainVersionRow.id == bindparam("row_id"))
        session.connection().execute(statement.values(folders=bindparam("row_folders")), filled)
