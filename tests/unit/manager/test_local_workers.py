"""Worker processes that another manager started."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil

from backends.home import Home
from backends.process_id import ProcessId
from builder.manager.jobs import Job, JobState, Worker
from builder.manager.local_workers import LocalWorkers
from builder.manager.unchanged import Unchanged
from builder.manager.workers import Silence


def running(process: subprocess.Popen[bytes] | psutil.Process) -> Job:
    return Job(
        id=1,
        kind="gc",
        target="home",
        request={},
        state=JobState.RUNNING,
        attempt=1,
        created_s=0.0,
        claimed_s=0.0,
        finished_s=None,
        heartbeat_s=0.0,
        cancel_requested_s=None,
        worker=Worker(host=socket.gethostname(), pid=process.pid, created_s=psutil.Process(process.pid).create_time()),
        baseline=None,
        progress=None,
        interruption=None,
        failure=None,
        result=None,
    )


def test_a_worker_elsewhere_is_silent_by_a_clock_that_nobody_sets() -> None:
    """Its own clock may be a day ahead or behind."""
    now_s = [50.0]
    silence = Silence(Unchanged(lambda: now_s[0]))
    for heartbeat_s in (0.0, 1e9, 86_400.0, 2e9):
        job = running(psutil.Process()).model_copy(update={"heartbeat_s": heartbeat_s})
        assert not silence.is_too_long(job)
        now_s[0] += 60
        assert not silence.is_too_long(job)
    now_s[0] += 0.1
    assert silence.is_too_long(job)
    assert not silence.is_too_long(job.model_copy(update={"attempt": 2}))


def test_a_worker_is_said_to_have_died_unseen_only_if_it_did(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    job = running(process)
    took_over, came_later = (LocalWorkers(Home(tmp_path), processes=1, niceness=0) for _ in range(2))
    assert took_over.ending(job) is None
    process.kill()
    process.wait()
    assert took_over.ending(job) == "worker was killed"
    assert came_later.ending(job) == "worker was killed while no manager was there"


def test_a_worker_lives_on_when_the_clock_is_set(tmp_path: Path) -> None:
    """Two managers later its start by the wall clock seems to be another; its start in ticks does not."""
    me = ProcessId.own()
    job, workers = running(psutil.Process()), LocalWorkers(Home(tmp_path), processes=1, niceness=0)
    assert job.worker is not None
    an_hour_off = job.worker.model_copy(update={"created_s": job.worker.created_s + 3600})
    known = an_hour_off.model_copy(update={"machine": me.machine, "start_ticks": me.start_ticks})
    assert workers.ending(job.model_copy(update={"worker": known})) is None
    for change in ({"start_ticks": me.start_ticks + 1}, {"machine": "another start/pid:[1]"}):
        reused = known.model_copy(update={"created_s": job.worker.created_s, **change})
        assert workers.ending(job.model_copy(update={"worker": reused})) == "worker was killed"
    came_later = LocalWorkers(Home(tmp_path), processes=1, niceness=0)
    assert came_later.ending(job) is None, "a record of an earlier release has no ticks"
    assert came_later.ending(job.model_copy(update={"worker": an_hour_off})) == "worker was killed"
