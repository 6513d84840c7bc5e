"""The stack seam through the real serve loop: two stages of a root's real layers, which pass jobs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from adapter_reference import reference_logits
from backends.adapters.bank import HplmArtifact, read_artifact
from backends.clock import now_us
from backends.engine.heads import HeadRow, logits
from backends.engine.job import Answer, Job
from backends.engine.loop import ServeLoop
from backends.engine.stack_protocol import Done, Emit, Next, SoFar, Stack
from backends.errors import HplmError, UnavailableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.encoder import padded_attention
from backends.root.store import RootFolder
from backends.scheduling.admission import Admission
from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.first_come import FirstComeFirstServed
from backends.scheduling.live_costs import LiveCosts
from backends.scheduling.policy import Capacity
from backends.stack_key import StackKey

HIDDEN = 64
FIRST, LAST = StackKey("tiny"), StackKey("tiny", stage=1)


@dataclass
class Stage:
    """One layer of two; the first one has an early exit behind it."""

    key: StackKey
    root: RootFolder
    artifacts: dict[int, HplmArtifact]
    leased: list[int] = field(default_factory=list)
    most_leased: int = 0

    def require_row(self, num_tokens: int, hidden_size: int) -> None:
        return None

    def holds(self, job: Job) -> bool:
        return True

    def lease(self, job: Job) -> StageLease:
        self.leased.append(job.hplm_key)
        self.most_leased = max(self.most_leased, len(self.leased))
        return StageLease(self, job.hplm_key)

    def pack(self, jobs: Sequence[Job], count: int = 1) -> Sequence[Job]:
        return jobs

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job], emit: Emit) -> None:
        for job in jobs:
            states = self.states(job)
            said = self.said(job, states)
            if self.key == LAST:
                emit(job, Done(said))
            else:
                emit(job, SoFar(said))
                emit(job, Next(LAST, states.half().numpy()))

    def states(self, job: Job) -> Tensor:
        adapters = self.artifacts[job.hplm_key].adapters
        hidden = torch.from_numpy(job.hidden).float()[None]
        attend = padded_attention(self.root.geometry.num_heads, torch.ones(1, job.num_tokens, dtype=torch.bool))
        if self.key == FIRST:
            hidden = adapters.enter(hidden)
        states: Tensor = self.root.upper().layers[self.key.stage](hidden, attend, adapters.layer(self.key.stage))
        return states[0]

    def said(self, job: Job, states: Tensor) -> Tensor:
        artifact = self.artifacts[job.hplm_key]
        return logits(states, [HeadRow(0, len(states), artifact.head, artifact.pooling)])[0]


@dataclass
class StageLease:
    stage: Stage
    key: int

    def release(self) -> None:
        self.stage.leased.remove(self.key)


@dataclass
class Staged:
    """A loop over both stages, and the answers of its jobs."""

    entries: list[HplmEntry]
    stages: dict[StackKey, Stage]
    loop: ServeLoop
    admission: Admission
    answers: dict[int, Answer | HplmError] = field(default_factory=dict)

    def job(self, number: int, length: int = 5) -> Job:
        entry = self.entries[number % len(self.entries)]
        hidden = np.random.default_rng(number).normal(size=(length, HIDDEN)).astype(np.float16)
        return Job(entry, hidden, False, None, lambda answer: self.answers.__setitem__(number, answer))

    def expected(self, number: int, job: Job) -> np.ndarray:
        stage = self.stages[FIRST]
        said = reference_logits(stage.root, stage.artifacts[job.hplm_key], torch.from_numpy(job.hidden).float())
        return said.softmax(dim=-1).numpy()

    def scores(self, number: int) -> list[float]:
        answer = self.answers[number]
        assert not isinstance(answer, HplmError)
        scores = answer["scores"]
        assert isinstance(scores, dict)
        return list(scores.values())

    def no_lease_is_held(self) -> bool:
        return not any(stage.leased for stage in self.stages.values())


def in_fp32(artifact: HplmArtifact) -> HplmArtifact:
    return replace(artifact, adapters=artifact.adapters.to(torch.float32), head=artifact.head.to(torch.float32))


def staged(home: Home, max_waiting: int = 100, is_threaded: bool = False) -> Staged:
    root = RootFolder(home.root("tiny"))
    assert root.geometry.num_upper_layers == 2
    entries = Registry.open(home).hplms()
    artifacts = {entry.key: in_fp32(read_artifact(home.path / entry.folder, root.fingerprint)) for entry in entries}
    stages = {key: Stage(key, root, artifacts) for key in (FIRST, LAST)}
    costs = {key: LiveCosts() for key in stages}
    admission = Admission(costs.__getitem__, Capacity(), AdmissionSettings(max_waiting, tenant_quota=max_waiting))
    stack_of: dict[StackKey, Stack] = dict(stages)
    loop = ServeLoop(stack_of.__getitem__, FirstComeFirstServed(), Capacity(), admission, is_threaded=is_threaded)
    return Staged(entries, stages, loop, admission)


def test_jobs_go_through_both_stages_and_hold_leases_of_one_at_a_time(built_home: Home) -> None:
    one = staged(built_home)
    jobs = [one.job(number, 3 + number) for number in range(6)]
    expected = [one.expected(number, job) for number, job in enumerate(jobs)]
    one.loop.submit(jobs)
    assert one.loop.step()
    assert not one.answers and one.no_lease_is_held()
    assert [job.stack for job in jobs] == [LAST] * 6
    assert one.admission.num_waiting == 6
    assert one.loop.step() and not one.loop.step()
    assert one.no_lease_is_held() and one.admission.num_waiting == 0
    assert [stage.most_leased for stage in one.stages.values()] == [6, 6]
    for number in range(6):
        np.testing.assert_allclose(one.scores(number), expected[number], atol=1e-2)


def test_the_threads_of_the_loop_pass_jobs_on_too(built_home: Home) -> None:
    one = staged(built_home, is_threaded=True)
    jobs = [one.job(number) for number in range(20)]
    expected = [one.expected(number, job) for number, job in enumerate(jobs)]
    for job in jobs:
        one.loop.submit([job])
    one.loop._queue.wait_until(lambda: len(one.answers) == 20 and not one.loop._in_flight)
    one.loop.close()
    assert one.no_lease_is_held()
    for number in range(20):
        np.testing.assert_allclose(one.scores(number), expected[number], atol=1e-2)


def test_a_job_that_is_too_late_for_its_next_stage_is_answered_with_its_fallback(built_home: Home) -> None:
    one = staged(built_home)
    late, other = jobs = [one.job(0), one.job(1)]
    first = one.stages[FIRST]
    fallback = first.said(late, first.states(late)).softmax(dim=-1).detach().numpy()
    for job in jobs:
        job.deadline_us = now_us() + 60_000_000
    one.loop.submit(jobs)
    assert one.loop.step()
    late.deadline_us = now_us() - 1
    while one.loop.step():
        pass
    np.testing.assert_allclose(one.scores(0), fallback, atol=1e-4)
    assert not np.allclose(one.scores(0), one.expected(0, late), atol=1e-2), "the stages must differ to show anything"
    assert len(one.scores(1)) == len(fallback) or other.fallback is not None
    assert one.no_lease_is_held()


def test_a_job_without_any_outcome_that_is_late_is_rejected(built_home: Home) -> None:
    one = staged(built_home)
    job = one.job(0)
    job.deadline_us = now_us() + 60_000_000
    one.loop.submit([job])
    job.deadline_us = now_us() - 1
    one.loop.step()
    assert isinstance(one.answers[0], UnavailableError)


def test_a_job_that_goes_on_is_never_rejected_for_a_full_queue_and_is_charged(
    built_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    readmitted: list[Job] = []
    readmit = Admission.readmit

    def noted(admission: Admission, jobs: Sequence[Job], now_us: int) -> None:
        readmitted.extend(jobs)
        readmit(admission, jobs, now_us)

    monkeypatch.setattr(Admission, "readmit", noted)
    one = staged(built_home, max_waiting=2)
    going_on = [one.job(0), one.job(1)]
    one.loop.submit(going_on)
    batch = one.loop._queue.choose(lambda: False)
    assert batch.jobs == going_on
    one.loop._hand_over(batch.jobs)
    one.loop.submit([one.job(2), one.job(3)])  # the queue is full
    while one.loop.step():
        pass
    assert sorted(one.answers) == [0, 1, 2, 3]
    assert not any(isinstance(answer, HplmError) for answer in one.answers.values())
    assert readmitted[:2] == going_on and len(readmitted) == 4
