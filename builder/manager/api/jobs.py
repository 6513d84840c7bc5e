"""Routes of jobs."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body, Header, Path, Query, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from backends.errors import ConflictError
from builder.manager.api.access import Builder, ManagerOf, Reader
from builder.manager.api.errors import answers
from builder.manager.api.examples import JOB_EXAMPLES
from builder.manager.api.views import JobList, JobView
from builder.manager.callers import Caller
from builder.manager.job_log import log_path, new_lines, tail
from builder.manager.jobs import JobState, hplm_targets
from builder.manager.store import JobFilter
from builder.requests.jobs import JobRequest

_LARGEST_ID = 2**31 - 1
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
JobId = Annotated[int, Path(ge=1, le=_LARGEST_ID, description="The job's number.")]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Any string of your own. Sent again with the same request, it gives the same job, not another one.",
    ),
]


@router.post(
    "",
    status_code=HTTPStatus.ACCEPTED,
    responses={
        200: {"model": JobView, "description": "The job that this idempotency key made before."},
        **answers(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS),
    },
)
def submit(
    manager: ManagerOf,
    caller: Builder,
    response: Response,
    request: Annotated[JobRequest, Body(openapi_examples=JOB_EXAMPLES)],
    idempotency_key: KeyHeader = None,
) -> JobView:
    """Create, update, roll back, pin, import or delete; `kind` says which.

    A job for something that an earlier job is still at work on waits for that one, and so does one that needs what
    an earlier job is building.
    """
    job, is_new = manager.admission.submit(request, idempotency_key, caller)
    if not is_new:
        response.status_code = HTTPStatus.OK
    manager.supervisor.wake()
    return JobView.of(job, manager.store.unfinished())


@router.get("", responses=answers(HTTPStatus.BAD_REQUEST))
def list_jobs(
    manager: ManagerOf,
    caller: Reader,
    state: JobState | None = None,
    kind: Annotated[str | None, Query(examples=["hplm.create"])] = None,
    target: Annotated[str | None, Query(examples=["hplm:acme/returns"])] = None,
    before: Annotated[int | None, Query(ge=1, le=_LARGEST_ID, description="Only jobs older than this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> JobList:
    """Jobs, the newest first; for a tenant-admin, those about its hPLMs."""
    found = manager.store.jobs(JobFilter(state, kind, target, before, limit, _targets(caller)))
    unfinished = manager.store.unfinished()
    views = [JobView.of(job, unfinished) for job in found]
    return JobList(jobs=views, next_before=views[-1].id if len(views) == limit else None)


@router.get("/{job_id}", responses=answers(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND))
def show_job(manager: ManagerOf, caller: Reader, job_id: JobId) -> JobView:
    """State and progress of a job."""
    return JobView.of(caller.require_job(manager.store.job(job_id)), manager.store.unfinished())


@router.post(
    "/{job_id}/cancel",
    status_code=HTTPStatus.ACCEPTED,
    responses=answers(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT),
)
def cancel_job(manager: ManagerOf, caller: Builder, job_id: JobId) -> JobView:
    """Stop a job; what it was building never goes live. One that publishes in this very moment ends as done."""
    caller.require_job(manager.store.job(job_id))
    job = manager.store.request_cancel(job_id, caller.shown)
    if job.state in (JobState.DONE, JobState.FAILED):
        raise ConflictError(f"job {job_id} is {job.state} already")
    manager.supervisor.wake()
    return JobView.of(job, manager.store.unfinished())


@router.get(
    "/{job_id}/log",
    response_class=PlainTextResponse,
    responses=answers(HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND),
)
def read_log(
    manager: ManagerOf,
    caller: Reader,
    job_id: JobId,
    lines: Annotated[int, Query(ge=0, le=100_000, description="How many of the last lines.")] = 200,
    follow: Annotated[bool, Query(description="Stay, and send new lines until the job is over.")] = False,
) -> Response:
    """Read the log of the job's workers, all attempts in one text."""
    job = caller.require_job(manager.store.job(job_id))
    path = log_path(manager.home, job.id)
    if not follow:
        return PlainTextResponse(tail(path, lines)[0])

    async def is_over() -> bool:
        return (await run_in_threadpool(manager.store.job, job_id)).is_finished

    return StreamingResponse(new_lines(path, lines, is_over), media_type="text/plain; charset=utf-8")


def _targets(caller: Caller) -> str | None:
    """Return what the targets begin with whose jobs a caller sees; None for all."""
    return None if caller.tenant is None else hplm_targets(caller.tenant)
