"""Jobs for students: of a root, and of its hPLMs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.student_set import students_folder
from bench.kit.tiny_home import write_corpus, write_task
from builder.executors.mapping import map_here
from builder.manager.admission import Admission
from builder.manager.job_context import JobContext
from builder.manager.jobs import Job, JobState, ready, waits_for
from builder.manager.pulse import JobCancelledError
from builder.manager.running import run_job
from builder.manager.store import JobStore
from builder.manager.upload_checks import CHECKS
from builder.manager.uploads import Uploads
from builder.manager.worker import run_attempt
from builder.progress import Step
from builder.requests.base import UploadKind
from builder.requests.jobs import stored_request

SETTINGS = {"count": 1, "layers": 1, "width": 32, "steps": 6, "tokens_per_batch": 256, "checkpoint_every": 2}
TUNE = {"epochs": 1, "recipe": {"rank": 4}}


@dataclass(frozen=True)
class Jobs:
    """A home whose jobs run in this process."""

    home: Home
    store: JobStore
    ids: Mapping[str, str]

    def submit(self, **request: Any) -> Job:
        admission = Admission(Registry.open(self.home), self.store, Uploads(self.home))
        return admission.submit(stored_request(request), None)[0]

    def run(self, job: Job) -> Job:
        assert self.store.claim(job.id) is not None
        assert run_attempt(self.home, job.id, job.attempt + 1, map_here) == 0
        return self.store.job(job.id)

    def make(self, **changes: Any) -> dict[str, Any]:
        return {"kind": "students.make", "corpus": [self.ids["corpus"]], "settings": SETTINGS, **changes}

    def add(self, **changes: Any) -> dict[str, Any]:
        texts = {name: self.ids[name] for name in ("train", "dev")}
        return {"kind": "students.add", "id": "acme/topic", "tune": TUNE, **texts, **changes}

    def stopped(self, request: Mapping[str, Any], is_time: Callable[[Step], bool], how: BaseException) -> None:
        """Run a request in an attempt that ends in the middle."""

        def report(step: Step) -> None:
            if is_time(step):
                raise how

        registry = Registry.open(self.home)
        context = JobContext(self.home, registry, Uploads(self.home), report, map_here)
        with pytest.raises(type(how)):
            run_job(context, stored_request(dict(request)).settled(registry))


@pytest.fixture
def jobs(tiny_home: Home, tmp_path: Path) -> Jobs:
    train, dev = write_task(tmp_path / "task", "topic", seed=100, train=32)
    files = {"train": train, "dev": dev, "corpus": write_corpus(tmp_path / "corpus.txt", 300, seed=3)}
    uploads, ids = Uploads(tiny_home, 100 << 20), {}
    for name, path in files.items():
        kind = UploadKind.CORPUS if name == "corpus" else UploadKind.TASK
        with uploads.receiving(kind, path.name) as incoming:
            incoming.write(path.read_bytes())
            ids[name] = incoming.keep(CHECKS[kind]).id
    return Jobs(tiny_home, JobStore.open(tiny_home), ids)


def test_students_are_made_and_then_added(jobs: Jobs) -> None:
    making, adding = jobs.submit(**jobs.make()), jobs.submit(**jobs.add(unlabelled=jobs.ids["corpus"]))
    assert (making.target, adding.target) == ("root:tiny", "hplm:acme/topic")
    unfinished = jobs.store.unfinished()
    assert waits_for(adding, unfinished) == [making.id] and [job.id for job in ready(unfinished)] == [making.id]
    made = jobs.run(making).result
    assert made is not None and (made["students"], made["layers"], made["live"]) == (1, 1, True)
    assert (made["width"], made["depth"]) == (32, 0.15625)
    assert made["fidelity"][0].keys() == {"cosine", "error"}
    added = jobs.run(adding).result
    assert added is not None and added["version"] == 2
    assert added["metrics"]["students"].items() >= {"best": 1, "set": made["fingerprint"]}.items()
    assert added["metrics"]["students"]["unlabelled_texts"] > 0


def test_students_are_replaced_only_where_that_is_wanted(jobs: Jobs) -> None:
    made = jobs.run(jobs.submit(**jobs.make())).result
    assert jobs.run(jobs.submit(**jobs.make())).result == made
    failed = jobs.run(jobs.submit(**jobs.make(settings={**SETTINGS, "seed": 3})))
    assert failed.state is JobState.FAILED and failed.failure is not None and failed.failure.code == "CONFLICT"
    replaced = jobs.run(jobs.submit(**jobs.make(settings={**SETTINGS, "seed": 3}, replace=True))).result
    assert made is not None and replaced is not None and replaced["fingerprint"] != made["fingerprint"]


def test_a_killed_worker_s_job_goes_on(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    jobs.stopped(
        jobs.make(), lambda step: step.phase == "distil the chain of students" and step.done == 5, KeyboardInterrupt()
    )
    making = jobs.submit(**jobs.make())
    steps: list[Step] = []
    registry = Registry.open(jobs.home)
    run_job(
        JobContext(jobs.home, registry, Uploads(jobs.home), steps.append, map_here),
        stored_request(making.request),
    )
    assert min(step.done for step in steps if step.phase == "distil the chain of students") > 2
    assert jobs.run(making).state is JobState.DONE  # published, and then killed before it said so


@pytest.mark.parametrize("phase", ["distil the chain of students", "tune"])
def test_nothing_of_a_cancelled_job_goes_live(jobs: Jobs, phase: str) -> None:
    request = jobs.make()
    if phase == "tune":
        jobs.run(jobs.submit(**request))
        request = jobs.add()
    jobs.stopped(request, lambda step: step.phase.startswith(phase) and step.done > 1, JobCancelledError())
    assert Registry.open(jobs.home).hplm("acme/topic").version == 1
    assert students_folder(jobs.home.root("tiny")).exists() == (phase == "tune")


def test_what_is_certain_to_fail_is_rejected_at_once(jobs: Jobs) -> None:
    for request, error, message in (
        (jobs.make(root="nosuch"), NotFoundError, "root 'nosuch' does not exist"),
        (jobs.make(corpus=[jobs.ids["train"]]), InvalidArgumentError, "is a task"),
        (jobs.make(settings={"counts": 2}), InvalidArgumentError, "counts"),
        (jobs.make(settings={"count": 9}), InvalidArgumentError, "1 to 8 students"),
        (jobs.add(id="new/one"), NotFoundError, "hPLM 'new/one' does not exist"),
        (jobs.add(unlabelled=jobs.ids["train"]), InvalidArgumentError, "is a task"),
        (jobs.add(tune={"epoch": 1}), InvalidArgumentError, "unknown"),
    ):
        with pytest.raises(error, match=message):
            jobs.submit(**request)
    failed = jobs.run(jobs.submit(**jobs.add())).failure
    assert failed is not None and "has no students yet" in failed.message
