"""Jobs in the database: who may change what, and what late or simultaneous messages do."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.errors import ConflictError, NotFoundError, UnavailableError
from backends.home import Home
from backends.registry import database
from builder.manager.jobs import Failure, Job, JobSpec, JobState, Progress, Worker, ready, waits_for
from builder.manager.store import JobFilter, JobStore

WORKER = Worker(host="here", pid=1, created_s=2.0)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def store(home: Home) -> JobStore:
    return JobStore.open(home)


def spec(target: str = "hplm:acme/a", needs: tuple[str, ...] = (), kind: str = "hplm.create") -> JobSpec:
    return JobSpec(kind=kind, target=target, needs=needs, uploads=("task-1",), request={"kind": kind, "id": target})


def running(store: JobStore, wanted: JobSpec | None = None) -> Job:
    job, _ = store.submit(wanted or spec())
    claimed = store.claim(job.id)
    assert claimed is not None
    begun = store.begin(job.id, claimed.attempt, WORKER, "as before")
    assert begun is not None
    return begun


def test_a_job_goes_from_queued_to_done(store: JobStore) -> None:
    job = running(store)
    assert (job.state, job.attempt, job.worker, job.baseline) == (JobState.RUNNING, 1, WORKER, "as before")
    progress = Progress(phase="tune", done=3, total=9, note="loss 0.1", eta_s=2.5)
    beaten = store.pulse(job.id, 1, progress)
    assert beaten is not None
    assert (beaten.progress, beaten.cancel_requested_s) == (progress, None)
    assert store.finish(job, JobState.DONE, {"version": 1})
    done = store.job(job.id)
    assert (done.state, done.result, done.is_finished) == (JobState.DONE, {"version": 1}, True)
    assert store.unfinished() == []


def test_nothing_changes_a_job_that_has_ended(store: JobStore) -> None:
    job = running(store)
    store.finish(job, JobState.FAILED, failure=Failure(code="INVALID_ARG", message="bad"))
    ended = store.job(job.id)
    assert not store.finish(job, JobState.DONE, {})
    assert store.pulse(job.id, job.attempt, None) is None
    assert store.begin(job.id, job.attempt, WORKER, "later") is None
    assert store.claim(job.id) is None
    store.requeue(job, "killed")
    assert store.request_cancel(job.id) == store.job(job.id) == ended


def test_an_attempt_that_was_given_up_changes_nothing(store: JobStore) -> None:
    first = running(store)
    store.requeue(first, "worker was killed by signal 9")
    second = store.claim(first.id)
    assert second is not None
    assert (second.attempt, second.worker, second.interruption) == (2, None, "worker was killed by signal 9")
    assert store.pulse(first.id, first.attempt, None) is None
    assert not store.finish(first, JobState.DONE, {})
    begun = store.begin(second.id, second.attempt, WORKER, "what the first attempt has changed")
    assert begun is not None
    assert begun.baseline == "as before"


def test_cancelling(store: JobStore) -> None:
    queued, _ = store.submit(spec())
    assert store.request_cancel(queued.id).state is JobState.CANCELLED
    job = running(store)
    assert store.request_cancel(job.id).state is JobState.RUNNING
    asked = store.pulse(job.id, job.attempt, None)
    assert asked is not None
    assert asked.cancel_requested_s is not None
    assert store.request_cancel(job.id).cancel_requested_s == asked.cancel_requested_s
    store.requeue(job, "killed")
    assert store.job(job.id).state is JobState.CANCELLED
    with pytest.raises(NotFoundError, match="job 4711 does not exist"):
        store.request_cancel(4711)


def test_cancelling_and_finishing_at_once_leaves_one_end(store: JobStore) -> None:
    for _ in range(20):
        job = running(store)
        start = threading.Barrier(2)

        def finish(job: Job = job, start: threading.Barrier = start) -> bool:
            start.wait()
            return store.finish(job, JobState.DONE, {"version": 7})

        def cancel(job: Job = job, start: threading.Barrier = start) -> None:
            start.wait()
            store.request_cancel(job.id)

        with ThreadPoolExecutor(2) as pool:
            finished = pool.submit(finish)
            pool.submit(cancel).result()
        assert finished.result()
        ended = store.job(job.id)
        assert (ended.state, ended.result) == (JobState.DONE, {"version": 7})


def test_an_idempotency_key_makes_one_job(store: JobStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda _: store.submit(spec(), "mine"), range(8)))
    assert len({job.id for job, _ in outcomes}) == 1
    assert sum(is_new for _, is_new in outcomes) == 1
    with pytest.raises(ConflictError, match="idempotency key 'mine' was used for another request"):
        store.submit(spec("hplm:acme/b"), "mine")
    assert store.submit(spec("hplm:acme/b"))[1]


def test_one_of_many_claims_wins(store: JobStore) -> None:
    job, _ = store.submit(spec())
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: store.claim(job.id), range(8)))
    assert [claim.attempt for claim in claims if claim is not None] == [1]


def test_lists_are_filtered_and_paged(store: JobStore) -> None:
    made = [store.submit(spec(f"hplm:acme/{n % 3}", kind=f"kind{n % 2}"))[0] for n in range(12)]
    for job in made[::4]:
        store.claim(job.id)
    for state, kind, target, before in [
        (None, None, None, None),
        (JobState.RUNNING, None, None, None),
        (None, "kind1", "hplm:acme/2", None),
        (JobState.QUEUED, "kind0", None, made[9].id),
    ]:
        expected = [
            job.id
            for job in map(store.job, [made[n].id for n in reversed(range(12))])
            if (state is None or job.state is state)
            and (kind is None or job.kind == kind)
            and (target is None or job.target == target)
            and (before is None or job.id < before)
        ]
        found = [job.id for job in store.jobs(JobFilter(state, kind, target, before, limit=4))]
        assert found == expected[:4]
        assert expected


def test_a_locked_database_is_one_clear_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 0.2)
    store = JobStore.open(home)
    job = running(store)
    with sqlite3.connect(home.path / "registry.db", isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError, match="locked by another process"):
            store.finish(job, JobState.DONE, {})
        other.execute("ROLLBACK")
    assert store.job(job.id).state is JobState.RUNNING


def test_jobs_go_to_the_file_that_is_there_now(store: JobStore, home: Home, tmp_path: Path) -> None:
    """A manager that runs while its registry is replaced by another file does not write into the old one."""
    store.submit(spec())
    shutil.copyfile(home.path / "registry.db", tmp_path / "restored.db")
    for name in ("registry.db-wal", "registry.db-shm"):
        (home.path / name).unlink(missing_ok=True)
    (tmp_path / "restored.db").replace(home.path / "registry.db")
    job, _ = store.submit(spec("hplm:acme/b"))
    with sqlite3.connect(home.path / "registry.db") as found:
        assert (job.id,) in found.execute("SELECT id FROM manager_jobs").fetchall()


def test_jobs_wait_for_earlier_ones_on_the_same_things(store: JobStore) -> None:
    chance = random.Random(7)
    things = ["domain:r/a", "domain:r/b", "hplm:t/a", "hplm:t/b"]
    jobs = [
        store.submit(spec(chance.choice(things), tuple(chance.sample(things, chance.randint(0, 2)))))[0]
        for _ in range(40)
    ]
    for job in jobs:
        touched = {job.target, *job.needs}
        expected = [
            other.id
            for other in jobs
            if other.id < job.id and (other.target in touched or job.target in {other.target, *other.needs})
        ]
        assert waits_for(job, jobs) == expected
    running = set(chance.sample(range(40), 5))
    states = [job.model_copy(update={"state": JobState.RUNNING}) if n in running else job for n, job in enumerate(jobs)]
    assert ready(states) == [job for n, job in enumerate(states) if n not in running and not waits_for(job, states)]
