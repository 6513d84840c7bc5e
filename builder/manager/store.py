"""The jobs in the database: every change is one guarded statement, so that late messages change nothing.

A worker names its attempt with everything it writes; once the job has ended or another attempt has begun, nothing that
it writes has any effect.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import ColumnElement, Update, case, delete, func, or_, select, update
from sqlalchemy.orm import Session

from backends.errors import ConflictError, NotFoundError
from backends.home import Home
from backends.registry.audit import note
from backends.registry.database import Database, clear_errors
from builder.manager.jobs import UNFINISHED, Failure, Job, JobSpec, JobState, Progress, Worker, hplm_targets
from builder.manager.schema import Base, JobRow

_UNTRACKED = {"synchronize_session": False}
_IDS_PER_STATEMENT = 500


@dataclass(frozen=True)
class JobFilter:
    """A choice of jobs to list; the newest come first, those before job `before`."""

    state: JobState | None = None
    kind: str | None = None
    target: str | None = None
    before: int | None = None
    limit: int = 50
    target_prefix: str | None = None


class JobStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, home: Home) -> Self:
        store = cls(Database.connect(home.registry_url))
        with clear_errors():
            Base.metadata.create_all(store._database.engine)
        return store

    def close(self) -> None:
        self._database.close()

    # --- what users do ---

    def submit(self, spec: JobSpec, idempotency_key: str | None = None, who: str | None = None) -> tuple[Job, bool]:
        """Queue a job; the same key with the same request gives the job that it gave before, and False.

        The audit log says who has it, where that is known.
        """
        try:
            return self._insert(spec, idempotency_key, who), True
        except ConflictError:
            known = self.submitted_before(spec, idempotency_key) if idempotency_key else None
            if known is None:
                raise
            return known, False

    def submitted_before(self, spec: JobSpec, idempotency_key: str) -> Job | None:
        """The job that a key has made; the key of another request is an error."""
        with self._database.reading() as session:
            row = session.scalars(select(JobRow).where(JobRow.idempotency_key == idempotency_key)).one_or_none()
            known = Job.model_validate(row) if row else None
        if known is not None and not known.asks_the_same(spec):
            raise ConflictError(f"idempotency key {idempotency_key!r} was used for another request, job {known.id}")
        return known

    def job(self, job_id: int) -> Job:
        with self._database.reading() as session:
            row = session.get(JobRow, job_id)
            if row is None:
                raise NotFoundError(f"job {job_id} does not exist")
            return Job.model_validate(row)

    def jobs(self, wanted: JobFilter) -> list[Job]:
        query = select(JobRow).order_by(JobRow.id.desc()).limit(wanted.limit)
        for column, value in ((JobRow.state, wanted.state), (JobRow.kind, wanted.kind), (JobRow.target, wanted.target)):
            query = query if value is None else query.where(column == value)
        if wanted.target_prefix is not None:
            query = query.where(JobRow.target.startswith(wanted.target_prefix, autoescape=True))
        if wanted.before is not None:
            query = query.where(JobRow.id < wanted.before)
        with self._database.reading() as session:
            return [Job.model_validate(row) for row in session.scalars(query)]

    def unfinished(self) -> list[Job]:
        """Queued and running jobs, the oldest first."""
        with self._database.reading() as session:
            query = select(JobRow).where(JobRow.state.in_(UNFINISHED)).order_by(JobRow.id)
            return [Job.model_validate(row) for row in session.scalars(query)]

    def num_unfinished_of(self, tenant: str, but_kinds: Collection[str]) -> int:
        """Count a tenant's jobs that are queued or run, except those of some kinds."""
        query = select(func.count()).select_from(JobRow).where(*_of(tenant, but_kinds))
        with self._database.reading() as session:
            return session.scalars(query.where(JobRow.state.in_(UNFINISHED))).one()

    def submitted_of(self, tenant: str, but_kinds: Collection[str], since_s: float) -> list[float]:
        """Return when a tenant's jobs were submitted since then, the oldest first, except those of some kinds."""
        query = select(JobRow.created_s).where(*_of(tenant, but_kinds), JobRow.created_s > since_s)
        with self._database.reading() as session:
            return list(session.scalars(query.order_by(JobRow.created_s)))

    def request_cancel(self, job_id: int, who: str | None = None) -> Job:
        """A queued job is cancelled at once; a running one is asked to stop."""
        now_s = time.time()
        is_queued = JobRow.state == JobState.QUEUED
        change = {
            "state": case((is_queued, JobState.CANCELLED), else_=JobRow.state),
            "finished_s": case((is_queued, now_s), else_=JobRow.finished_s),
            "cancel_requested_s": case((JobRow.cancel_requested_s.is_(None), now_s), else_=JobRow.cancel_requested_s),
        }
        with self._database.transaction() as session:
            wanted = update(JobRow).where(JobRow.id == job_id, JobRow.state.in_(UNFINISHED))
            if _changed(session, wanted.values(change)) and who is not None:
                target = session.scalars(select(JobRow.target).where(JobRow.id == job_id)).one()
                note(session, "job.cancel", target, before=f"job {job_id}", who=who)
        return self.job(job_id)

    # --- what the supervisor does ---

    def claim(self, job_id: int) -> Job | None:
        """Take a queued job for its next attempt, unless it was cancelled meanwhile."""
        with self._database.transaction() as session:
            claimed = update(JobRow).where(JobRow.id == job_id, JobRow.state == JobState.QUEUED)
            values = {"state": JobState.RUNNING, "attempt": JobRow.attempt + 1, "claimed_s": time.time()}
            fresh = {"worker": None, "heartbeat_s": None, "progress": None}
            if not _changed(session, claimed.values({**values, **fresh})):
                return None
            return Job.model_validate(session.get_one(JobRow, job_id, populate_existing=True))

    def requeue(self, job: Job, interruption: str, counts: bool = True) -> None:
        """Let a job whose worker is gone go on with its next attempt; one that was to be cancelled is.

        An attempt that never began does not count.
        """
        is_cancelled = JobRow.cancel_requested_s.is_not(None)
        self._while_running(
            job.id,
            job.attempt,
            state=case((is_cancelled, JobState.CANCELLED), else_=JobState.QUEUED),
            finished_s=case((is_cancelled, time.time()), else_=None),
            interruption=interruption,
            attempt=job.attempt if counts else job.attempt - 1,
        )

    def finished(self, before_s: float, but_last: int) -> list[int]:
        """The jobs that ended before then, and all that did before the `but_last` last ones."""
        ended = JobRow.state.not_in(UNFINISHED)
        newest = select(JobRow.id).where(ended).order_by(JobRow.finished_s.desc(), JobRow.id.desc()).limit(but_last)
        old = or_(JobRow.finished_s < before_s, JobRow.id.not_in(newest))
        with self._database.reading() as session:
            return list(session.scalars(select(JobRow.id).where(ended, old).order_by(JobRow.id)))

    def forget(self, job_ids: Sequence[int]) -> None:
        """Remove finished jobs; their numbers are never given again, their idempotency keys are free."""
        for start in range(0, len(job_ids), _IDS_PER_STATEMENT):
            chosen = JobRow.id.in_(job_ids[start : start + _IDS_PER_STATEMENT])
            with self._database.transaction() as session:
                session.execute(delete(JobRow).where(chosen, JobRow.state.not_in(UNFINISHED)))

    # --- what a worker does ---

    def begin(self, job_id: int, attempt: int, worker: Worker, baseline: str) -> Job | None:
        """Note where an attempt runs, and before the first one what it starts from; None if it is not wanted."""
        kept = case((JobRow.baseline.is_(None), baseline), else_=JobRow.baseline)
        values = {"worker": worker.model_dump(), "heartbeat_s": time.time(), "baseline": kept}
        return self.job(job_id) if self._while_running(job_id, attempt, **values) else None

    def pulse(self, job_id: int, attempt: int, progress: Progress | None) -> Job | None:
        """Note that a worker lives and how far it is; None if its attempt is not wanted any more."""
        shown = progress.model_dump() if progress else None
        wanted = self._while_running(job_id, attempt, heartbeat_s=time.time(), progress=shown)
        return self.job(job_id) if wanted else None

    def finish(
        self,
        job: Job,
        state: JobState,
        result: dict[str, Any] | None = None,
        failure: Failure | None = None,
    ) -> bool:
        """End an attempt; False if it had ended already."""
        values = {"state": state, "finished_s": time.time(), "result": result}
        return self._while_running(job.id, job.attempt, failure=failure.model_dump() if failure else None, **values)

    # --- inside ---

    def _while_running(self, job_id: int, attempt: int, /, **values: Any) -> bool:
        same = (JobRow.id == job_id, JobRow.attempt == attempt, JobRow.state == JobState.RUNNING)
        with self._database.transaction() as session:
            return _changed(session, update(JobRow).where(*same).values(values))

    def _insert(self, spec: JobSpec, key: str | None, who: str | None) -> Job:
        row = JobRow(**spec.model_dump(), state=JobState.QUEUED, created_s=time.time(), idempotency_key=key)
        with self._database.transaction() as session:
            session.add(row)
            session.flush()
            if who is not None:
                note(session, f"job.submit {spec.kind}", spec.target, after=f"job {row.id}", who=who)
            return Job.model_validate(row)


def _of(tenant: str, but_kinds: Collection[str]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return JobRow.target.startswith(hplm_targets(tenant), autoescape=True), JobRow.kind.not_in(but_kinds)


def _changed(session: Session, statement: Update) -> bool:
    return session.scalars(statement.returning(JobRow.id), execution_options=_UNTRACKED).one_or_none() is not None
