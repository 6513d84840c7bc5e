"""Attempts as processes of this machine: each its own process group, so that nothing of it stays behind.

They are not tied to the manager. One that is started again finds them by process number and start, in ticks of the
machine: the wall clock may be set while they work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

import psutil

from backends.home import Home
from backends.process_id import ProcessId
from backends.storage import disk_full_is_an_error
from builder.manager.job_log import log_path
from builder.manager.jobs import Job, Worker
from builder.manager.workers import TRY_AGAIN, Silence

_SAME_START_S = 1.0
_KILL_WAIT_S = 10.0


class LocalWorkers:
    """`processes` is how many each job may count and compute tables with; `niceness` is added to the manager's own."""

    def __init__(self, home: Home, processes: int, niceness: int) -> None:
        self._home = home
        self._processes = processes
        self._niceness = niceness
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._taken_over: set[int] = set()
        self._silence = Silence()

    def start(self, job: Job) -> None:
        numbers = (job.id, job.attempt, self._processes, self._niceness)
        arguments = [str(self._home.path), *map(str, numbers)]
        path = log_path(self._home, job.id)
        with disk_full_is_an_error(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log:  # what a crash prints ends up beside what the worker logs
                self._started[job.id] = subprocess.Popen(
                    [sys.executable, "-m", "builder.manager.worker", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def ending(self, job: Job) -> str | None:
        process = self._started.get(job.id)
        if process is not None:
            status = process.poll()
            return None if status is None else _in_words(status)
        if job.worker is None or job.worker.host != socket.gethostname():
            return "worker has not been heard of for a minute" if self._silence.is_too_long(job) else None
        if _found(job.worker):
            self._taken_over.add(job.id)
            return None
        return "worker was killed" if job.id in self._taken_over else "worker was killed while no manager was there"

    def kill(self, job: Job) -> None:
        process = self._started.pop(job.id, None)
        if process is not None:
            if process.poll() is None:
                _kill_group(process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_WAIT_S)
        elif job.worker is not None and job.worker.host == socket.gethostname() and (found := _found(job.worker)):
            _kill_group(found.pid)
            with contextlib.suppress(psutil.TimeoutExpired):
                found.wait(_KILL_WAIT_S)

    def release(self, job: Job) -> None:
        """Its end is in the database, so the process has nothing more to do than to end, which may take it seconds."""
        self.kill(job)
        self._silence.forget(job)

    def close(self) -> None:
        self._started.clear()


def _in_words(status: int) -> str:
    if status == TRY_AGAIN:
        return "worker had to stop, its log says why"
    if status < 0:
        return f"worker was killed by signal {-status}"
    return f"worker ended with exit status {status} and no result"


def _found(worker: Worker) -> psutil.Process | None:
    """The living process, and no later one that was given the same number."""
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process = psutil.Process(worker.pid)
        if _is_same(process, worker) and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _is_same(process: psutil.Process, worker: Worker) -> bool:
    """Compare the starts; a record of an earlier release has that by the wall clock only."""
    if worker.machine is None or worker.start_ticks is None:
        return bool(abs(process.create_time() - worker.created_s) < _SAME_START_S)
    return ProcessId.of(worker.pid) == ProcessId(worker.machine, worker.pid, worker.start_ticks)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
