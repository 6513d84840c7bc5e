"""Jobs on a real manager with real workers: done, cancelled, killed; and a manager that is killed itself."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import write_corpus, write_task
from living_processes import living
from managed_home import LONG, SHORT, Managed, managing, worker_of
from waiting import LIMIT_S


@pytest.fixture(scope="module")
def managed(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    home = Home(Path(shutil.copytree(built_home.path, tmp_path_factory.mktemp("managed") / "home")))
    with managing(home) as running:
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_task(tmp_path_factory.mktemp("task"), "topic", seed=61, train=60)


def test_from_a_corpus_to_an_hplm_and_back(managed: Managed, files: tuple[Path, Path], tmp_path: Path) -> None:
    corpus = managed.upload("corpus", write_corpus(tmp_path / "shop.txt", 300, seed=77))
    key = {"Idempotency-Key": "shop-1"}
    wanted = {"kind": "domain.create", "name": "shop", "corpus": [corpus], "mlm_steps": 0, "theta": 1.0}
    first = managed.http.post("/v1/jobs", json=wanted, headers=key)
    again = managed.http.post("/v1/jobs", json=wanted, headers=key)
    assert (first.status_code, again.status_code) == (202, 200)
    domain = first.json()["id"]
    assert again.json()["id"] == domain
    # Asked for before there is a domain, and to be gone before it has been there: each waits for the one before.
    create = managed.tune(files, domain="shop", tune=SHORT)
    delete = managed.submit(kind="hplm.delete", id="new/one")
    assert managed.job(create)["waits_for"] == [domain]
    assert managed.job(delete)["waits_for"] == [create]
    in_use = managed.http.delete(f"/v1/uploads/{corpus}")
    assert (in_use.status_code, in_use.json()["error"]["message"][-6:]) == (409, f" job {domain}")
    with managed.http.stream("GET", f"/v1/jobs/{create}/log", params={"follow": True}) as log:
        followed = b"".join(log.iter_bytes()).decode()
    made = managed.job(create)
    assert (made["state"], made["result"]["version"], made["error"]) == ("done", 1, None)
    assert managed.log(create) == followed
    assert "tune adapters and head" in followed
    assert managed.http.get(f"/v1/jobs/{create}/log", params={"lines": 1}).text == followed.splitlines(True)[-1]
    assert managed.job(domain)["result"]["metrics"]["own_fragments"] > 0
    assert managed.end(delete)["state"] == "done"
    assert managed.live_version("new/one") is None
    listed = managed.http.get("/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in listed["jobs"]] == [delete, create]
    assert listed["next_before"] == create
    assert managed.http.post("/v1/jobs", json=wanted, headers=key).json()["id"] == domain
    other = managed.http.post("/v1/jobs", json={**wanted, "name": "other"}, headers=key)
    assert other.status_code == 409
    assert managed.http.post(f"/v1/jobs/{domain}/cancel").status_code == 409


def test_a_job_that_cannot_be_done_says_why_in_the_users_words(managed: Managed, tmp_path: Path) -> None:
    train, _ = write_task(tmp_path, "topic", 3, 40)
    dev = tmp_path / "other.jsonl"
    dev.write_text('{"text": "a cat", "label": "nowhere"}\n')
    failed = managed.end(managed.tune((train, dev), domain="farm"))
    assert (failed["state"], failed["error"]["code"]) == ("failed", "INVALID_ARG")
    assert "other.jsonl" in failed["error"]["message"]
    assert str(managed.home.path) not in failed["error"]["message"]
    assert failed["error"]["message"] in managed.log(failed["id"])


def test_a_killed_worker_is_noticed_and_the_job_goes_on(managed: Managed, files: tuple[Path, Path]) -> None:
    job = managed.tune(files, kind="hplm.update", id="globex/topic", force=True, tune={"epochs": 150, "patience": 150})
    worker = worker_of(managed.at_work(job))
    assert worker.nice() == psutil.Process().nice()  # as this manager was told
    worker.kill()
    killed_at = time.monotonic()
    second = managed.wait(job, lambda job: job["attempt"] == 2)
    assert time.monotonic() - killed_at < LIMIT_S, "a worker that is only silent is given a minute"
    assert second["interruption"] == "worker was killed by signal 9"
    assert managed.live_version("globex/topic") == 1
    done = managed.end(job)
    assert (done["state"], done["result"]["version"]) == ("done", 2)


@pytest.mark.long
def test_a_cancelled_job_leaves_nothing_live_and_holds_nobody_up(managed: Managed, files: tuple[Path, Path]) -> None:
    job = managed.tune(files, id="new/never", domain="farm", tune=LONG)
    waiting = managed.submit(kind="hplm.delete", id="new/never")
    worker = worker_of(managed.at_work(job))
    worker.suspend()  # it would take a core from the others until the test looks at it again
    quick = [{"kind": "hplm.pin", "id": "acme/mood"}, {"kind": "gc", "dry_run": True}]
    for request in (*quick, {"kind": "hplm.delete", "id": "acme/mood"}):
        assert managed.end(managed.submit(**request))["state"] == "done"
    assert managed.live_version("acme/mood") is None
    in_use = managed.end(managed.submit(kind="domain.delete", name="street"))
    assert (in_use["state"], in_use["error"]["code"]) == ("failed", "CONFLICT")
    cancelled = managed.http.post(f"/v1/jobs/{waiting}/cancel").json()
    assert (cancelled["state"], cancelled["attempt"]) == ("cancelled", 0)
    worker.resume()
    assert managed.http.post(f"/v1/jobs/{job}/cancel").json()["cancel_requested"]
    assert managed.end(job)["state"] == "cancelled"
    psutil.wait_procs([worker], timeout=LIMIT_S)
    assert not living([worker])
    assert managed.live_version("new/never") is None
    assert not list((managed.home.path / "bank" / "tiny").glob("new--never*"))
    assert managed.http.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"


@pytest.mark.long
def test_jobs_outlive_a_killed_manager(tiny_home: Home, files: tuple[Path, Path]) -> None:
    """What runs goes on without a manager and is taken up again; what was queued is started by the next one.

    The first manager has its jobs stand back, so that both ends of that option are tried.
    """
    with managing(tiny_home, "--niceness", "7") as managed:
        long = managed.tune(files, domain="farm", tune=LONG)
        worker = worker_of(managed.at_work(long))
        assert worker.nice() == psutil.Process().nice() + 7
        queued = managed.submit(kind="hplm.rollback", id="new/one")
        managed.kill()
    with managing(tiny_home) as later:
        before = later.job(long)
        assert (before["state"], before["attempt"], worker_of(before)) == ("running", 1, worker)
        assert later.wait(long, lambda job: bool(job["progress"]["done"] > before["progress"]["done"]))["attempt"] == 1
        assert later.job(queued)["state"] == "queued"
        later.kill()
    worker.kill()
    with managing(tiny_home) as last:
        resumed = last.wait(long, lambda job: job["attempt"] == 2)
        assert resumed["interruption"] == "worker was killed while no manager was there"
        last.http.post(f"/v1/jobs/{long}/cancel")
        assert last.end(long)["state"] == "cancelled"
        assert last.end(queued)["error"]["code"] == "NOT_FOUND"
        assert last.live_version("new/one") is None


@pytest.mark.long
def test_a_job_that_had_published_is_done_though_it_was_cancelled_and_killed(
    managed: Managed, files: tuple[Path, Path]
) -> None:
    """Its worker stops between going live and saying so, does not hear that it is to stop, and is killed."""
    job = managed.tune(files, kind="hplm.update", id="acme/topic", tune=LONG)
    worker = worker_of(managed.at_work(job))
    worker.suspend()
    with contextlib.closing(Registry.open(managed.home)) as registry:
        live = registry.hplm("acme/topic")
        published = registry.publish_hplm("acme/topic", live.domain, live.task, live.labels, live.folder, live.metrics)
    managed.http.post(f"/v1/jobs/{job}/cancel")
    ended = managed.end(job)
    assert (ended["state"], ended["attempt"], ended["result"]["version"]) == ("done", 1, published.version)
    assert managed.live_version("acme/topic") == published.version
    assert not living([worker])
