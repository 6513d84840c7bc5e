"""The registry's tables.

Versions are never changed after they are written; publishing adds a version row and moves a live pointer, in one
transaction that also counts up the revision. A reader that remembers the revision sees changes by asking for
rows above it. A deleted hPLM stays as a row without a live version until garbage collection, and its version
numbers are never given out again.
"""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

REGISTRY_FORMAT_VERSION = 6
_KEY_BITS = 62


class Base(DeclarativeBase):
    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON, float: Float(53)}  # noqa: RUF012 - read off the class


class State(Base):
    """One row: the format and the revision of the whole registry."""

    __tablename__ = "state"
    id: Mapped[int] = mapped_column(primary_key=True)
    format_version: Mapped[int]
    revision: Mapped[int] = mapped_column(BigInteger)


class PublicationRow(Base):
    """One revision and its random mark. A restored or replaced registry has other marks, or none, at revisions after.

    Only the last ones are kept.
    """

    __tablename__ = "publications"
    revision: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    mark: Mapped[int] = mapped_column(BigInteger, default=lambda: secrets.randbits(_KEY_BITS))


class RootRow(Base):
    __tablename__ = "roots"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    fingerprint: Mapped[str]
    folder: Mapped[str]
    deleted_at: Mapped[float | None]
    """Seconds since the epoch, as all times here."""


class DomainRow(Base):
    __tablename__ = "domains"
    __table_args__ = (UniqueConstraint("root_id", "name"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    root_id: Mapped[int] = mapped_column(ForeignKey("roots.id"))
    name: Mapped[str]
    live_version: Mapped[int]
    last_version: Mapped[int]
    """Greater than the live one after a rollback."""
    deleted_at: Mapped[float | None]
    root: Mapped[RootRow] = relationship()


class DomainVersionRow(Base):
    __tablename__ = "domain_versions"
    __table_args__ = (UniqueConstraint("domain_id", "version"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    domain_id: Mapped[int] = mapped_column(ForeignKey("domains.id"))
    version: Mapped[int]
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("domain_versions.id"))
    folder: Mapped[str]
    folders: Mapped[list[str]]
    """All that a lookup reads, nearest first; its own folder among them."""
    metrics: Mapped[dict[str, Any]]
    published_at: Mapped[float | None]
    retired_at: Mapped[float | None]
    """None while it is live."""
    domain: Mapped[DomainRow] = relationship()
    parent: Mapped[DomainVersionRow | None] = relationship(remote_side=[id])


class HplmRow(Base):
    __tablename__ = "hplms"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    live_version_id: Mapped[int | None] = mapped_column(BigInteger)
    """None once the hPLM is deleted; its name can then be taken again."""
    last_version: Mapped[int]
    pinned_id: Mapped[int | None] = mapped_column(ForeignKey("domain_versions.id"))
    """The domain version that updates stay on."""
    revision: Mapped[int] = mapped_column(BigInteger, index=True)
    pinned: Mapped[DomainVersionRow | None] = relationship()


class HplmVersionRow(Base):
    __tablename__ = "hplm_versions"
    __table_args__ = (UniqueConstraint("hplm_id", "version"),)
    # Random, because it travels in tickets: a client cannot name a version that was not looked up for it.
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=lambda: 1 + secrets.randbits(_KEY_BITS))
    hplm_id: Mapped[int] = mapped_column(ForeignKey("hplms.id"))
    version: Mapped[int]
    domain_version_id: Mapped[int] = mapped_column(ForeignKey("domain_versions.id"), index=True)
    task: Mapped[str]
    pair: Mapped[bool] = mapped_column(default=False)
    labels: Mapped[list[str]]
    folder: Mapped[str]
    metrics: Mapped[dict[str, Any]]
    published_at: Mapped[float | None]
    retired_at: Mapped[float | None]
    retired_revision: Mapped[int | None] = mapped_column(BigInteger)
    """The first revision at which it was live no more; None while it is live, or where an older release retired it."""
    hplm: Mapped[HplmRow] = relationship()
    domain_version: Mapped[DomainVersionRow] = relationship()


class ServerRow(Base):
    """One process that answers from what it has read here; see `backends/registry/servers.py`."""

    __tablename__ = "servers"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    name: Mapped[str]
    machine: Mapped[str]
    pid: Mapped[int]
    start_ticks: Mapped[int] = mapped_column(BigInteger)
    revision: Mapped[int] = mapped_column(BigInteger)
    mark: Mapped[int | None] = mapped_column(BigInteger)
    seen_at: Mapped[float]
    serves_for_s: Mapped[float]


class TokenRow(Base):
    """One token, without its secret."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(primary_key=True)
    token_id: Mapped[str] = mapped_column(unique=True)
    scope: Mapped[str]
    role: Mapped[str]
    sha256: Mapped[str]
    created_at: Mapped[float]
    not_before: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    revision: Mapped[int] = mapped_column(BigInteger, index=True)


class QuotaRow(Base):
    """What one tenant may request; a row whose quotas are all None is that of a tenant without."""

    __tablename__ = "quotas"
    id: Mapped[int] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(unique=True)
    weight: Mapped[float | None]
    rows_per_s: Mapped[float | None]
    bytes_per_s: Mapped[float | None]
    waiting_rows: Mapped[int | None] = mapped_column(BigInteger)
    hplms: Mapped[int | None] = mapped_column(BigInteger)
    upload_bytes: Mapped[int | None] = mapped_column(BigInteger)
    running_jobs: Mapped[int | None] = mapped_column(BigInteger)
    jobs_per_day: Mapped[int | None] = mapped_column(BigInteger)
    revision: Mapped[int] = mapped_column(BigInteger, index=True)


class AuditRow(Base):
    """One change: who made it, when, of what; written in its transaction, and never changed after.

    `digest` is the SHA-256 of the rest and of the digest of the row before.
    """

    __tablename__ = "audit"
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[float]
    who: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    before: Mapped[str | None]
    after: Mapped[str | None]
    revision: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str]


class AuditEndRow(Base):
    """One row: the number of the audit log's last entry, which the log may have lost.

    A table of its own, because writers that wait for each other at `state` would keep a migration from changing that.
    """

    __tablename__ = "audit_end"
    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
