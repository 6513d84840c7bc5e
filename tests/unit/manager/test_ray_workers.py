"""What workers of a Ray cluster are given, and what becomes of an attempt whose actor is lost before it begins."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from backends.home import REGISTRY_VARIABLE, Home
from builder.manager import ray_workers
from builder.manager.jobs import Job, JobSpec
from builder.manager.ray_workers import RayWorkers
from builder.manager.store import JobStore
from ray_cluster import NEEDS_RAY, two_nodes

URL = "postgresql://hplm:secret@db/registry"


def test_the_registrys_url_goes_to_workers_in_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    monkeypatch.setenv(REGISTRY_VARIABLE, URL)
    ray_workers._write_url(home)
    ray_workers._write_url(home)
    (path,) = home.run.iterdir()
    assert path.read_text() == URL and stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.delenv(REGISTRY_VARIABLE)
    monkeypatch.setattr(ray_workers, "run_attempt", lambda *_: int(os.environ.get(REGISTRY_VARIABLE) == URL))
    monkeypatch.setattr(ray_workers, "cluster_map", lambda _: None)
    assert ray_workers.Attempt().run(str(tmp_path), 1, 1, 1, "cpu") == 1
    monkeypatch.delenv(REGISTRY_VARIABLE)
    ray_workers._write_url(home)
    assert list(home.run.iterdir()) == []
    assert ray_workers.Attempt().run(str(tmp_path), 1, 1, 1, "cpu") == 0


@contextmanager
def joined(home: Home, address: str) -> Iterator[RayWorkers]:
    workers = RayWorkers(home, 1, address)
    try:
        yield workers
    finally:
        workers.close()


def claimed(store: JobStore, attempt: int) -> Job:
    """An attempt at a job on a GPU."""
    files = {"train": "task-1", "dev": "task-2"}
    request = {"kind": "hplm.update", "id": "acme/topic", **files, "device": "cuda:1"}
    job_id = store.submit(JobSpec(kind="hplm.update", target="hplm:acme/topic", request=request))[0].id
    for _ in range(attempt - 1):
        store.claim(job_id)
        store.requeue(store.job(job_id), "worker was lost")
    job = store.claim(job_id)
    assert job is not None
    return job


def wait_for_end(workers: RayWorkers, job: Job) -> str:
    deadline = time.monotonic() + 60.0
    while (ending := workers.ending(job)) is None and time.monotonic() < deadline:
        workers.kill(job)  # as a node takes its actors with it
        time.sleep(0.1)
    assert ending is not None
    return ending


@pytest.mark.long
@NEEDS_RAY
def test_only_later_attempts_wait_for_a_gpu_and_start_anew_some_times(tiny_home: Home) -> None:
    store = JobStore.open(tiny_home)
    with two_nodes() as cluster, joined(tiny_home, cluster.address) as workers:
        with pytest.raises(InvalidArgumentError, match="no node of the Ray cluster has a GPU"):
            workers.start(claimed(store, 1))
        second = claimed(store, 2)
        workers.start(second)
        assert workers.ending(second) is None
        assert wait_for_end(workers, second) == "worker was lost: ActorDiedError"
        assert workers._starts[ray_workers._name(second)] == ray_workers._STARTS
