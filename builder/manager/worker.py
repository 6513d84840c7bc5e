"""One attempt of one job, from its row in the database to its end there; the same on every executor.

Usage:
    python -m builder.manager.worker HOME JOB_ID ATTEMPT PROCESSES NICENESS
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from backends.errors import HplmError, LockedError, StorageFullError, UnavailableError
from backends.home import Home
from backends.process_id import ProcessId
from backends.registry.audit import acting_as
from backends.registry.registry import Registry
from builder.executors.mapping import ParallelMap
from builder.executors.processes import local_map
from builder.manager.failures import failure_of, with_shown_names
from builder.manager.job_context import JobContext
from builder.manager.job_log import log_path
from builder.manager.jobs import Failure, Job, JobState, Worker
from builder.manager.pulse import JobCancelledError, Pulse
from builder.manager.running import run_job
from builder.manager.store import JobStore
from builder.manager.targets import RegistryStamp
from builder.manager.uploads import Uploads
from builder.manager.workers import TRY_AGAIN
from builder.progress import Step
from builder.requests.jobs import JobRequest, on_device, stored_request

LOGGER = logging.getLogger(__name__)
_LOCK_PATIENCE_S = 300.0
_LOCK_PAUSE_S = 1.0


def main() -> int:
    home, job_id, attempt, processes, niceness = sys.argv[1:]
    os.nice(int(niceness))
    return run_attempt(Home(Path(home)), int(job_id), int(attempt), local_map(int(processes)))


def run_attempt(home: Home, job_id: int, attempt: int, fan_out: ParallelMap, device: str | None = None) -> int:
    """Run an attempt to its end; the status says whether the end is in the database.

    It trains on `device` where one is given, else where the job asks for.
    """
    with _logging_to(log_path(home, job_id)):
        try:
            return _run(home, job_id, attempt, fan_out, device)
        except UnavailableError as error:
            LOGGER.error("attempt %d ends: %s", attempt, error)
            return TRY_AGAIN


def _run(home: Home, job_id: int, attempt: int, fan_out: ParallelMap, device: str | None) -> int:
    store, registry = JobStore.open(home), Registry.open(home)
    job = _begin(store, registry, job_id, attempt)
    if job is None:
        LOGGER.info("attempt %d is not wanted any more", attempt)
        return 0
    uploads = Uploads(home)
    with Pulse(store, job) as pulse:
        try:
            context = JobContext(home, registry, uploads, pulse.report, fan_out)
            with acting_as(f"job {job.id} of the manager"):
                request = stored_request(job.request)
                done = _run_unlocked(context, job, request if device is None else on_device(request, device))
            result = _shown(done, _shown_names(home, uploads, job))
        except JobCancelledError:
            LOGGER.info("cancelled")
            return _end(store, job, JobState.CANCELLED)
        except Exception as error:
            if _is_worth_another_attempt(error):
                raise
            failure = failure_of(error, _shown_names(home, uploads, job))
            LOGGER.error("failed: %s", failure.message, exc_info=None if isinstance(error, HplmError) else error)
            return _end(store, job, JobState.FAILED, failure=failure)
    LOGGER.info("done: %s", result)
    return _end(store, job, JobState.DONE, result)


def _run_unlocked(context: JobContext, job: Job, request: JobRequest) -> dict[str, Any]:
    """Run a job; an attempt after the first waits for a lock that an attempt on a lost node may still hold.

    A server of NFS keeps a lost node's locks until its lease ends. Once a job has published, it is not run again.
    """
    patient_until = time.monotonic() + (_LOCK_PATIENCE_S if job.attempt > 1 else 0.0)
    before = _stamp(request, context.registry)
    while True:
        try:
            return run_job(context, request)
        except LockedError as error:
            if time.monotonic() >= patient_until or _stamp(request, context.registry) != before:
                raise
            context.report(Step("wait for a lock", 0, 1, str(error)))
            time.sleep(_LOCK_PAUSE_S)


def _begin(store: JobStore, registry: Registry, job_id: int, attempt: int) -> Job | None:
    request = stored_request(store.job(job_id).request)
    worker = _this_process()
    LOGGER.info("attempt %d of job %d begins in process %d on %s", attempt, job_id, worker.pid, worker.host)
    return store.begin(job_id, attempt, worker, _stamp(request, registry))


def _this_process() -> Worker:
    me = ProcessId.own()
    return Worker(
        host=socket.gethostname(),
        pid=me.number,
        created_s=psutil.Process().create_time(),
        machine=me.machine,
        start_ticks=me.start_ticks,
    )


def _stamp(request: JobRequest, registry: Registry) -> str:
    return "" if request.target is None else str(RegistryStamp.of(request.target, registry))


def _end(
    store: JobStore,
    job: Job,
    state: JobState,
    result: dict[str, object] | None = None,
    failure: Failure | None = None,
) -> int:
    store.finish(job, state, result, failure)
    return 0


def _shown_names(home: Home, uploads: Uploads, job: Job) -> dict[str, str]:
    """Return paths that users do not know, and what messages say instead: of an upload the name it was sent under."""
    return {**uploads.named_as_sent(job.uploads), f"{home.path}/": ""}


def _shown(result: Mapping[str, Any], shown_names: Mapping[str, str]) -> dict[str, Any]:
    """Replace paths in what a result says: why a version has no ladder may name its files."""
    return {
        name: with_shown_names(value, shown_names) if isinstance(value, str) else value
        for name, value in result.items()
    }


def _is_worth_another_attempt(error: Exception) -> bool:
    """The registry may be back in a while; a full disk stays full until somebody makes room."""
    return isinstance(error, UnavailableError) and not isinstance(error, StorageFullError)


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Write what our own code logs in this process also into the job's log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    loggers = [logging.getLogger(name) for name in ("backends", "builder", "__main__")]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        handler.close()


if __name__ == "__main__":
    sys.exit(main())
