"""What the supervisor makes of how workers end; the workers themselves are at work in the server tests."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass, field

import pytest

from backends.errors import InvalidArgumentError, StorageFullError
from backends.home import Home
from backends.registry.registry import Registry
from builder.manager import supervisor
from builder.manager.jobs import Job, JobSpec, JobState, Worker
from builder.manager.store import JobStore
from builder.manager.supervisor import Limits, Supervisor


@dataclass
class Scripted:
    """Workers that live and end as a test says."""

    endings: dict[int, str] = field(default_factory=dict)
    started: list[tuple[int, int]] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    is_full: bool = False

    def start(self, job: Job) -> None:
        if self.is_full:
            raise StorageFullError("no space left")
        self.started.append((job.id, job.attempt))

    def ending(self, job: Job) -> str | None:
        return self.endings.get(job.id)

    def kill(self, job: Job) -> None:
        self.killed.append(job.id)

    def release(self, job: Job) -> None:
        self.released.append(job.id)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Bench:
    store: JobStore
    workers: Scripted
    supervisor: Supervisor

    def submit(self, kind: str, hplm: str) -> int:
        request = {"kind": kind, "id": hplm}
        if kind == "hplm.update":
            request |= {"train": "task-1", "dev": "task-2"}
        return self.store.submit(JobSpec(kind=kind, target=f"hplm:{hplm}", request=request))[0].id

    def state(self, job_id: int) -> JobState:
        return self.store.job(job_id).state


def bench(home: Home, **limits: float) -> Bench:
    store, workers = JobStore.open(home), Scripted()
    return Bench(store, workers, Supervisor(store, Registry.open(home), workers, Limits(**limits)))  # type: ignore[arg-type]


def test_a_job_is_given_up_after_its_last_attempt(tiny_home: Home) -> None:
    on = bench(tiny_home, attempts=2)
    job = on.submit("hplm.update", "acme/topic")
    on.workers.endings[job] = "worker was killed by signal 9"
    for _ in range(5):
        on.supervisor.look()
    failure = on.store.job(job).failure
    assert failure is not None
    assert (failure.code, failure.message) == ("WORKER_LOST", "worker was killed by signal 9 (attempt 2 of 2)")
    assert on.workers.started == [(job, 1), (job, 2)]
    assert on.workers.released == [job, job]


def test_workers_are_limited_and_targets_are_not_shared(tiny_home: Home) -> None:
    on = bench(tiny_home, workers=2)
    first, same = on.submit("hplm.update", "acme/topic"), on.submit("hplm.update", "acme/topic")
    second, third = on.submit("hplm.update", "acme/mood"), on.submit("hplm.update", "globex/topic")
    quick, waiting = on.submit("hplm.delete", "initech/mood"), on.submit("hplm.delete", "acme/mood")
    on.supervisor.look()
    assert on.workers.started == [(first, 1), (second, 1), (quick, 1)]
    assert on.store.finish(on.store.job(first), JobState.DONE)
    on.supervisor.look()
    assert on.workers.released == [first]
    assert on.workers.started[3:] == [(same, 1)]
    assert {on.state(third), on.state(waiting)} == {JobState.QUEUED}


def test_jobs_of_moments_are_a_few_at_once_and_keep_their_order(tiny_home: Home) -> None:
    """Each is a process of its own."""
    on = bench(tiny_home)
    jobs = [on.submit("hplm.delete", f"acme/h{number}") for number in range(9)]
    on.supervisor.look()
    on.supervisor.look()
    assert [job for job, _ in on.workers.started] == jobs[:4]
    for job in (jobs[2], jobs[3]):
        assert on.store.finish(on.store.job(job), JobState.DONE)
    on.supervisor.look()
    assert [job for job, _ in on.workers.started] == jobs[:6]
    tuning = on.submit("hplm.update", "globex/topic")
    on.supervisor.look()
    assert [job for job, _ in on.workers.started] == [*jobs[:6], tuning], "it has a worker of its own"


def test_a_worker_that_does_not_stop_is_killed_after_the_grace(tiny_home: Home) -> None:
    on = bench(tiny_home, grace_s=0)
    job = on.submit("hplm.update", "acme/topic")
    on.supervisor.look()
    on.store.request_cancel(job)
    on.supervisor.look()
    assert on.workers.killed == [job]
    assert on.state(job) is JobState.CANCELLED


def test_a_lost_worker_that_had_published_is_done(tiny_home: Home) -> None:
    on = bench(tiny_home)
    job = on.submit("hplm.delete", "acme/topic")
    on.supervisor.look()
    assert on.store.begin(job, 1, Worker(host="here", pid=1, created_s=1.0), "last 1, live 1") is not None
    Registry.open(tiny_home).delete_hplm("acme/topic")
    on.workers.endings[job] = "worker was killed by signal 9"
    on.supervisor.look()
    assert on.state(job) is JobState.DONE
    assert on.workers.started == [(job, 1)]


def lost(on: Bench, kind: str, baseline: str) -> int:
    """A job whose worker is gone once the supervisor looks again."""
    job = on.submit(kind, "acme/topic")
    on.supervisor.look()
    assert on.store.begin(job, 1, Worker(host="here", pid=1, created_s=1.0), baseline) is not None
    on.workers.endings[job] = "worker was killed by signal 9"
    return job


def test_what_somebody_else_changed_is_not_what_a_job_has_done(tiny_home: Home) -> None:
    on, registry = bench(tiny_home, attempts=1), Registry.open(tiny_home)
    update = lost(on, "hplm.update", "last 1, live 1")
    live = registry.delete_hplm("acme/topic")
    on.supervisor.look()
    assert on.state(update) is JobState.FAILED
    parts = (live.id, live.domain, live.task, live.labels, live.folder, live.metrics)
    registry.publish_hplm(*parts)
    pin = lost(on, "hplm.pin", "last 2, live 2")
    registry.publish_hplm(*parts)
    on.supervisor.look()
    assert on.state(pin) is JobState.FAILED
    update = lost(on, "hplm.update", "last 3, live 3")
    registry.publish_hplm(*parts)
    on.supervisor.look()
    assert on.state(update) is JobState.DONE


def test_a_stored_request_that_is_not_readable_fails_alone(tiny_home: Home) -> None:
    on = bench(tiny_home)
    request = {"kind": "hplm.newest", "id": "acme/mood"}
    bad = on.store.submit(JobSpec(kind="hplm.delete", target="hplm:acme/mood", request=request))[0].id
    on.supervisor.look()
    on.workers.endings[bad] = "worker ended with status 1"
    good = on.submit("hplm.delete", "acme/topic")
    on.supervisor.look()
    assert (on.state(bad), on.workers.started[-1]) == (JobState.FAILED, (good, 1))
    failure = on.store.job(bad).failure
    assert failure is not None
    assert "stored request is not readable" in failure.message


def test_a_job_that_cannot_be_looked_after_keeps_nobody_waiting(tiny_home: Home) -> None:
    class Broken(Scripted):
        def ending(self, job: Job) -> str | None:
            raise OSError("no such process table")

    on = bench(tiny_home)
    store, workers = on.store, Broken()
    supervisor = Supervisor(store, Registry.open(tiny_home), workers, Limits(workers=2))
    on.submit("hplm.update", "acme/topic")
    supervisor.look()
    second = on.submit("hplm.update", "acme/mood")
    supervisor.look()
    assert workers.started[-1] == (second, 1)


def test_a_worker_that_cannot_be_started_is_no_attempt(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that is full for minutes must not fail the whole queue."""
    on = bench(tiny_home, attempts=2, workers=2)
    on.workers.is_full = True
    first, second = on.submit("hplm.update", "acme/topic"), on.submit("hplm.update", "acme/mood")
    for _ in range(5):
        on.supervisor.look()
    waiting = on.store.job(first)
    assert (waiting.state, waiting.attempt) == (JobState.QUEUED, 0)
    assert waiting.interruption == "worker could not be started: no space left"
    assert on.store.job(second).interruption is None, "nothing else is started meanwhile"
    assert len([record for record in caplog.records if record.name == supervisor.__name__]) == 1
    now_s = time.monotonic()
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now_s + 60)
    on.workers.is_full = False
    on.supervisor.look()
    assert on.workers.started == [(second, 1), (first, 1)], "it may be its own fault, and keeps no other waiting"


def test_jobs_that_cannot_be_started_keep_no_other_waiting(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_START_PAUSE_S", 0.0)

    class Choosy(Scripted):
        def start(self, job: Job) -> None:
            if job.id in bad:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            super().start(job)

    store, bad = JobStore.open(tiny_home), set[int]()
    limits = Limits(workers=1)
    on = Bench(store, workers := Choosy(), Supervisor(store, Registry.open(tiny_home), workers, limits))
    bad |= {on.submit("hplm.update", hplm) for hplm in ("acme/topic", "acme/mood")}
    good = on.submit("hplm.update", "globex/topic")
    for _ in range(3):
        on.supervisor.look()
    assert workers.started == [(good, 1)]


def test_a_job_whose_worker_cannot_be_started_may_be_cancelled(tiny_home: Home) -> None:
    class Full(Scripted):
        def start(self, job: Job) -> None:
            on.store.request_cancel(job.id)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    store = JobStore.open(tiny_home)
    on = Bench(store, workers := Full(), Supervisor(store, Registry.open(tiny_home), workers, Limits()))
    job = on.submit("hplm.update", "acme/topic")
    on.supervisor.look()
    assert on.state(job) is JobState.CANCELLED


def test_a_job_that_can_never_be_started_is_not_tried_again(tiny_home: Home) -> None:
    class WithoutGpu(Scripted):
        def start(self, job: Job) -> None:
            raise InvalidArgumentError("no node has a GPU")

    store = JobStore.open(tiny_home)
    on = Bench(store, workers := WithoutGpu(), Supervisor(store, Registry.open(tiny_home), workers, Limits()))
    job = on.submit("hplm.update", "acme/topic")
    on.supervisor.look()
    failure = on.store.job(job).failure
    assert failure is not None
    assert (failure.code, failure.message, on.store.job(job).attempt) == ("INVALID_ARG", "no node has a GPU", 1)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"attempts": 0}, {"grace_s": -1.0}, {"poll_s": 0.0}])
def test_limits_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        Limits(**wrong)  # type: ignore[arg-type]
