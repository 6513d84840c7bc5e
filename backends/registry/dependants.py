"""Dependants of a domain or a root, which keep it from being deleted."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from backends.errors import ConflictError
from backends.registry.schema import DomainRow, DomainVersionRow, HplmRow, HplmVersionRow, RootRow

_NAMED = 3


def require_unused_domain(session: Session, live: DomainVersionRow) -> None:
    """Reject while a child domain or an hPLM, live or kept for a rollback, needs any version of the domain."""
    if live.parent_id is None:
        raise ConflictError(
            f"domain {live.domain.name!r} belongs to its root; 'hplm root delete {live.domain.root.name}' takes both"
        )
    of_domain = DomainVersionRow.domain_id == live.domain_id
    parents = select(DomainVersionRow.id).where(of_domain)
    children = DomainVersionRow.parent_id.in_(parents) & (DomainVersionRow.domain_id != live.domain_id)
    users = [*_domains(session, children), *_hplms(session, of_domain)]
    _require_none(f"domain {live.domain.name!r}", users)


def require_unused_root(session: Session, root: RootRow) -> None:
    """Reject while the root has hPLMs, or domains other than its own first one."""
    of_root = DomainRow.root_id == root.id
    users = [*_domains(session, of_root & DomainVersionRow.parent_id.is_not(None)), *_hplms(session, of_root)]
    _require_none(f"root {root.name!r}", users)


def _domains(session: Session, which: ColumnElement[bool]) -> list[str]:
    query = select(DomainRow.name).join(DomainVersionRow, DomainVersionRow.domain_id == DomainRow.id).where(which)
    names = session.scalars(query.where(DomainRow.deleted_at.is_(None)).distinct().order_by(DomainRow.name))
    return [f"domain {name!r}" for name in names]


def _hplms(session: Session, which: ColumnElement[bool]) -> list[str]:
    """The hPLMs with a version tuned on such a domain version, or pinned to it; kept versions by their number."""
    tuned = (
        select(HplmRow.name, HplmVersionRow.version, HplmVersionRow.id == HplmRow.live_version_id)
        .join(HplmVersionRow, HplmVersionRow.hplm_id == HplmRow.id)
        .join(DomainVersionRow, HplmVersionRow.domain_version_id == DomainVersionRow.id)
        .join(DomainRow, DomainVersionRow.domain_id == DomainRow.id)
        .where(which, HplmRow.live_version_id.is_not(None))
        .order_by(HplmRow.name, HplmVersionRow.version)
    )
    pinned = (
        select(HplmRow.name)
        .join(DomainVersionRow, HplmRow.pinned_id == DomainVersionRow.id)
        .join(DomainRow, DomainVersionRow.domain_id == DomainRow.id)
        .where(which)
        .order_by(HplmRow.name)
    )
    rows = session.execute(tuned).all()
    live = [name for name, _, is_live in rows if is_live]
    kept = [f"{name}@{version} (kept for a rollback)" for name, version, is_live in rows if not is_live]
    return [*dict.fromkeys([*live, *session.scalars(pinned)]), *kept]


def _require_none(what: str, users: Sequence[str]) -> None:
    if not users:
        return
    named = ", ".join(users[:_NAMED])
    more = f" and {len(users) - _NAMED:,} more" if len(users) > _NAMED else ""
    raise ConflictError(f"{what} cannot be deleted: {named}{more} need{'s' if len(users) == 1 else ''} it")
