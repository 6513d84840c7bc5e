"""Random jobs through every policy, with admission: none is lost, none runs twice, no batch exceeds its capacity."""

from __future__ import annotations

from collections import Counter

from backends.errors import HplmError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.policies import policy_of
from backends.scheduling.settings import AdmissionSettings, Ageing, Capacity, PolicyName, PolicySettings
from backends.stack_key import StackKey
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target
from builder.placement.simulated_job import SimulatedJob

_STACKS = (StackKey("one"), StackKey("two"))
_EVENTS = 15
_LATEST_US = 2**53


class Scheduling(Target):
    """Jobs of any length, deadline, tenant and stack arrive, are dropped, put back and run."""

    name = "scheduling"
    cases = 10_000

    def attempt(self, draw: Draw) -> None:
        _Queue(draw).play()


class _Queue:
    """One engine's queue, and what has become of each job."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        parts = [draw.choice((0.0, 1.0, draw.uniform(0, 1e4), 1e12)) for _ in range(5)]
        model = CostModel(*parts)
        costs = LiveCosts(model)
        self._capacity = Capacity(draw.randint(1, 20), draw.randint(1, 400), draw.randint(1, 12))
        settings = PolicySettings(draw.choice(list(PolicyName)), ageing=Ageing(draw.choice((0, 500, 10**6))))
        self._policy = policy_of(settings, lambda _: model)
        admission = AdmissionSettings(max_waiting=draw.choice((1, 10, 1000)), predicts=draw.happens(0.5))
        self._admission: Admission[SimulatedJob] = Admission(
            lambda _: costs, self._capacity, admission, self._policy.order
        )
        for stack in _STACKS:
            self._admission.serves(stack)
        self._now_us = draw.choice((0, 1_000_000, 2**50))
        self._made = 0
        self._fates: Counter[int] = Counter()

    def play(self) -> None:
        for _ in range(_EVENTS):
            self._now_us += self._draw.choice((0, 0, 1, 700, 50_000))
            match self._draw.randrange(5):
                case 0 | 1 | 2:
                    self._arrive()
                case 3:
                    self._note(self._admission.drop_late(self._now_us))
                case _:
                    self._run()
        while len(self._admission.waiting):
            self._run()
        if self._fates != Counter(range(self._made)):
            raise HarmedError("a job was lost, or has ended twice")

    def _arrive(self) -> None:
        jobs = [self._job() for _ in range(self._draw.choice((1, 1, 2, 5)))]
        rejection = self._admission.admit(jobs, self._now_us)
        if isinstance(rejection, HplmError):
            self._note(jobs)

    def _job(self) -> SimulatedJob:
        draw = self._draw
        self._made += 1
        deadline_us = draw.choice((None, self._now_us + draw.randint(-5, 3_000), draw.randint(0, _LATEST_US)))
        tokens, tenant = draw.choice((1, draw.randint(1, 60), 512)), draw.choice("abc")
        job = SimulatedJob(self._made - 1, self._now_us, draw.randrange(15), tenant, tokens, deadline_us)
        job.root = draw.choice(_STACKS)
        if draw.happens(0.3):
            job.depth, job.least_depth = 0.7, 0.3
            job.exit_depth = 0.3
        return job

    def _run(self) -> None:
        admission = self._admission
        if not len(admission.waiting):
            return
        indices = self._policy.select(admission.waiting, self._now_us, self._capacity)
        self._require_fits(indices)
        infeasible = admission.infeasible(indices, self._now_us)
        if infeasible:
            self._note(admission.drop(infeasible))
            return
        jobs = admission.take_batch(indices, self._now_us)
        if self._draw.happens(0.1):
            admission.put_back(jobs, self._now_us)
            return
        shape = BatchShape.of(jobs)
        admission.batches.began(jobs[0].root, shape, self._now_us)
        self._now_us += self._draw.choice((0, 1, 5_000))
        admission.batches.finished(self._now_us)
        self._note(jobs)

    def _require_fits(self, indices: list[int]) -> None:
        jobs = [self._admission.waiting[index] for index in indices]
        limits = self._capacity
        fits = (
            len(jobs) <= limits.max_rows
            and sum(job.num_tokens for job in jobs) <= limits.max_tokens
            and len({job.hplm_key for job in jobs}) <= limits.max_adapters
        )
        if len({job.root for job in jobs}) != 1 or len(set(indices)) != len(indices) or not (fits or len(jobs) == 1):
            raise HarmedError("a batch is empty, of several stacks, or exceeds its capacity")

    def _note(self, jobs: list[SimulatedJob]) -> None:
        self._fates.update(job.place for job in jobs)
