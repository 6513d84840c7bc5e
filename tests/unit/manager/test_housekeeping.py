"""What a manager forgets: old jobs with their logs and abandoned uploads, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from builder.manager import store as store_module
from builder.manager.housekeeping import Housekeeping, Retention
from builder.manager.job_log import log_path
from builder.manager.jobs import Job, JobSpec, JobState
from builder.manager.store import JobFilter, JobStore
from builder.manager.unchanged import Unchanged
from builder.manager.uploads import Uploads
from waiting import wait_until

DAY_S = 86_400.0


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def store(home: Home) -> JobStore:
    return JobStore.open(home)


def submitted(home: Home, store: JobStore, key: str | None = None) -> Job:
    job = store.submit(JobSpec(kind="gc", target="gc", request={"kind": "gc"}), key)[0]
    path = log_path(home, job.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a line\n")
    return job


def finished(home: Home, store: JobStore, days_ago: float, patch: pytest.MonkeyPatch, key: str | None = None) -> int:
    job = submitted(home, store, key)
    claimed = store.claim(job.id)
    assert claimed is not None
    with patch.context() as at:
        at.setattr(store_module.time, "time", lambda now_s=time.time(): now_s - days_ago * DAY_S)
        assert store.finish(claimed, JobState.DONE)
    return job.id


def left(home: Home, store: JobStore) -> set[int]:
    """The jobs that are there; each has its log, and no other log is there."""
    jobs = {job.id for job in store.jobs(JobFilter(limit=10_000))}
    assert {int(path.stem) for path in (home.run / "jobs").iterdir()} == jobs
    return jobs


def tidy(home: Home, store: JobStore, **retention: float) -> set[int]:
    Housekeeping(home, store, Uploads(home), Retention(**retention)).tidy()  # type: ignore[arg-type]
    return left(home, store)


def test_old_jobs_go_with_their_logs(home: Home, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    queued, running = submitted(home, store), submitted(home, store)
    store.claim(running.id)
    old = finished(home, store, 31, monkeypatch, key="mine")
    young = finished(home, store, 29, monkeypatch)
    assert tidy(home, store) == {queued.id, running.id, young}
    with pytest.raises(NotFoundError):
        store.job(old)
    assert submitted(home, store, key="mine").id > young
    assert tidy(home, store, days=28.0) == {queued.id, running.id, young + 1}


def test_the_last_jobs_stay(home: Home, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [finished(home, store, days_ago, monkeypatch) for days_ago in (1, 3, 2, 0)]
    queued = submitted(home, store).id
    assert tidy(home, store, jobs=2) == {ids[0], ids[3], queued}
    monkeypatch.setattr(store_module, "_IDS_PER_STATEMENT", 3)
    more = [finished(home, store, 0, monkeypatch) for _ in range(10)]
    assert tidy(home, store, jobs=1) == {more[-1], queued}


def test_abandoned_uploads_go_after_a_day(home: Home, store: JobStore) -> None:
    uploads = home.path / "uploads"
    kept = uploads / f"corpus-{'0' * 64}"
    stale = [uploads / ".incoming-1", uploads / ".incoming-2", uploads / f".corpus-{'1' * 64}.building"]
    fresh = uploads / ".incoming-3"
    for folder in (kept, *stale[1:]):
        folder.mkdir(parents=True)
    for file in (stale[0], fresh, stale[2] / "content.txt"):
        file.write_bytes(b"half")
    now_s = [1000.0]
    housekeeping = Housekeeping(home, store, Uploads(home, idle=Unchanged(lambda: now_s[0])), Retention())
    for year_2000_or_2100 in (946_684_800.0, 4_102_444_800.0):  # the wall clock was set meanwhile
        for path in (kept, *stale, fresh):
            os.utime(path, (year_2000_or_2100,) * 2)
        housekeeping.tidy()
        now_s[0] += DAY_S - 1
        housekeeping.tidy()
        assert set(uploads.iterdir()) == {kept, *stale, fresh}
    fresh.write_bytes(b"half and more")
    now_s[0] += 1
    housekeeping.tidy()
    assert set(uploads.iterdir()) == {kept, fresh}
    housekeeping.start()
    housekeeping.stop()
    assert set(uploads.iterdir()) == {kept}


def test_a_manager_tidies_when_it_starts(home: Home, store: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    old, young = finished(home, store, 31, monkeypatch), finished(home, store, 1, monkeypatch)
    housekeeping = Housekeeping(home, store, Uploads(home), Retention())
    housekeeping.start()
    try:
        wait_until(lambda: not log_path(home, old).exists() and len(store.jobs(JobFilter())) <= 1)
    finally:
        housekeeping.stop()
    assert left(home, store) == {young}


@pytest.mark.parametrize("wrong", [{"days": 0.0}, {"days": -1.0}, {"jobs": 0}])
def test_a_retention_keeps_something(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="kept"):
        Retention(**wrong)  # type: ignore[arg-type]
