"""Quotas: what each tenant may request, and its weight among tenants; changed while servers run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backends.errors import CorruptFileError, InvalidArgumentError, NotFoundError, shown
from backends.names import check_name
from backends.registry.audit import note
from backends.registry.database import Database
from backends.registry.rows import ReadRows, read_rows, row_fields
from backends.registry.schema import QuotaRow

LEAST_WEIGHT, MOST_WEIGHT = 0.001, 1000.0
_MOST = 1e12
_WHOLE = ("waiting_rows", "hplms", "upload_bytes", "running_jobs", "jobs_per_day")


@dataclass(frozen=True)
class Quota:
    """What one tenant may request; None: no limit, and the weight 1.

    Attributes:
        weight: Its part of the device while others want some.
        rows_per_s: Rows a second; a second's worth may come at once.
        bytes_per_s: Bytes of text a second, likewise.
        waiting_rows: Rows that may wait, in place of the export's limit for every tenant.
        hplms: Number of its hPLMs.
        upload_bytes: Bytes of its uploads that the manager keeps.
        running_jobs: Its jobs that are queued or run.
        jobs_per_day: Its jobs that were submitted within a day.
    """

    weight: float | None = None
    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    waiting_rows: int | None = None
    hplms: int | None = None
    upload_bytes: int | None = None
    running_jobs: int | None = None
    jobs_per_day: int | None = None

    def __post_init__(self) -> None:
        if self.weight is not None and not LEAST_WEIGHT <= self.weight <= MOST_WEIGHT:
            raise InvalidArgumentError(f"a weight is {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, not {self.weight:g}")
        for name in ("rows_per_s", "bytes_per_s", "waiting_rows"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _MOST:
                raise InvalidArgumentError(f"{name} must be above 0, not {value:g}")
        for name in ("hplms", "upload_bytes", "running_jobs", "jobs_per_day"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _MOST:
                raise InvalidArgumentError(f"{name} must be 0 or more, not {value}")

    @property
    def is_empty(self) -> bool:
        return self == Quota()

    @property
    def shown(self) -> str | None:
        """Its parts in a line; None without any."""
        return ", ".join(f"{name} {value:g}" for name, value in asdict(self).items() if value is not None) or None

    @property
    def has_rates(self) -> bool:
        return self.rows_per_s is not None or self.bytes_per_s is not None


QUOTAS = tuple(field.name for field in fields(Quota))


@dataclass(frozen=True)
class TenantQuota:
    """The quota of a tenant. `number` is that of its row: small, and its own for good."""

    tenant: str
    number: int
    quota: Quota


class QuotaTable:
    """The registry's quotas; each change is one publication."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def set(self, tenant: str, changes: Mapping[str, float]) -> Quota:
        """Change the named parts of a tenant's quota; the others stay."""
        check_name(tenant, "tenant")
        if not changes:
            raise InvalidArgumentError("name at least one quota to set")
        return self._update("quota.set", tenant, lambda quota: Quota(**{**_values(quota), **changes}))  # type: ignore[arg-type]

    def remove(self, tenant: str, names: Sequence[str] = ()) -> Quota:
        """Remove the named parts of a tenant's quota, or all of it."""
        for name in names:
            if name not in QUOTAS:
                raise InvalidArgumentError(f"quota {shown(name)} is not one of {', '.join(QUOTAS)}")
        if self.of(tenant).is_empty:
            raise NotFoundError(f"tenant {shown(tenant)} has no quota")
        gone = dict.fromkeys(names or QUOTAS)
        return self._update("quota.remove", tenant, lambda quota: Quota(**{**_values(quota), **gone}))  # type: ignore[arg-type]

    def of(self, tenant: str) -> Quota:
        with self._database.reading() as session:
            return quota_of(session, tenant)

    def all(self) -> list[TenantQuota]:
        """Return the tenants that have a quota, by their names."""
        with self._database.reading() as session:
            entries = [_entry(row) for row in session.scalars(select(QuotaRow).order_by(QuotaRow.tenant))]
        return [entry for entry in entries if not entry.quota.is_empty]

    def changed(self, after_revision: int) -> ReadRows[TenantQuota]:
        """Return the quotas that changed since a revision; removed ones are empty, a damaged one fails no other."""
        with self._database.reading() as session:
            return read_rows(
                session,
                QuotaRow.tenant,
                QuotaRow.revision > after_revision,
                lambda chosen: [_entry(row) for row in session.scalars(select(QuotaRow).where(chosen))],
            )

    def _update(self, action: str, tenant: str, change: Callable[[Quota], Quota]) -> Quota:
        with self._database.publication() as (session, revision):
            row = _row(session, tenant)
            if row is None:
                row = QuotaRow(tenant=tenant)
                session.add(row)
            before = _quota(row)
            quota = change(before)
            for name, value in _values(quota).items():
                setattr(row, name, value)
            row.revision = revision
            note(session, action, tenant, before.shown, quota.shown)
            return quota


def quota_of(session: Session, tenant: str) -> Quota:
    row = _row(session, tenant)
    return Quota() if row is None else _quota(row)


def _row(session: Session, tenant: str) -> QuotaRow | None:
    return session.scalars(select(QuotaRow).where(QuotaRow.tenant == tenant)).one_or_none()


def _values(quota: Quota) -> dict[str, float | None]:
    return {name: getattr(quota, name) for name in QUOTAS}


def _quota(row: QuotaRow) -> Quota:
    stored = row_fields(row, "a quota")
    quotas: dict[str, Any] = {}
    for field in fields(Quota):
        if stored.get(field.name) is not None:
            quotas[field.name] = stored.whole(field.name) if field.name in _WHOLE else stored.number(field.name)
    try:
        return Quota(**quotas)
    except InvalidArgumentError as error:
        raise CorruptFileError(f"{stored.where}: {error}") from error


def _entry(row: QuotaRow) -> TenantQuota:
    return TenantQuota(row.tenant, row.id, _quota(row))
