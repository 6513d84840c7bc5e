"""The manager's table; it lies beside the registry's own, and is made when a manager first opens a home."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON}  # noqa: RUF012 - SQLAlchemy reads it off the class


class JobRow(Base):
    """One job; times are seconds since 1970."""

    __tablename__ = "manager_jobs"
    __table_args__ = {"sqlite_autoincrement": True}  # noqa: RUF012 - an ID is never given twice
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    target: Mapped[str] = mapped_column(index=True)
    needs: Mapped[list[str]]
    uploads: Mapped[list[str]]
    request: Mapped[dict[str, Any]]
    idempotency_key: Mapped[str | None] = mapped_column(unique=True)
    state: Mapped[str] = mapped_column(index=True)
    attempt: Mapped[int] = mapped_column(default=0)
    created_s: Mapped[float]
    claimed_s: Mapped[float | None]
    finished_s: Mapped[float | None]
    heartbeat_s: Mapped[float | None]
    cancel_requested_s: Mapped[float | None]
    worker: Mapped[dict[str, Any] | None]
    baseline: Mapped[str | None]
    progress: Mapped[dict[str, Any] | None]
    interruption: Mapped[str | None]
    failure: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]
