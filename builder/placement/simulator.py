"""The serve loop in virtual time: the same policies, admission, forecast and cost model, and no machine.

Rejected are rows that the forecast or admission predicts to be late, rows that become late in the queue or infeasible
in a batch that is staged while another runs, and rows that are late when their batch begins, which do not run, or is
done. With exits, rows that are sure enough are answered once their batch has passed the lower part of the layers, and
rows settle as in the engine. With students, the engine's own class chooses how many answer a batch when it starts. How
time goes is in `server_run`.

What happened is kept in columns, and judged after the run, all requests at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from backends.errors import InvalidArgumentError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.policies import Policy
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.placement.front import FrontIntake
from builder.placement.intake import Intake, OpenIntake, WholeIntake
from builder.placement.late_watch import LateWatch
from builder.placement.machine import FreeMachine, Machine, SharedMachine, StagedMachine
from builder.placement.server_costs import ServerCosts
from builder.placement.server_run import Answering, ServerRun
from builder.placement.simulated_exits import Exits
from builder.placement.simulated_job import ROOT, Depths, SimulatedJob
from builder.placement.simulated_load import SimulatedLoad
from builder.placement.simulated_queue import SimulatedQueue
from builder.placement.simulated_stages import WHOLE, Stages
from builder.placement.simulated_students import STUDENT_STACK, Students
from builder.placement.simulation_log import Simulation
from builder.progress import Report, Step

_STEP_US = 60_000_000
_LEARNED_BATCHES = 32
"""What a server has learned that has run for a while: its predictions go by the latest batches."""


class Simulator:
    """One server with one stack.

    Args:
        policy: Chooses each batch.
        cost_model: What admission knows, and what batches take unless `measured_us` says otherwise.
        admission: Decides about arriving rows; without it all wait, as long as no more than `max_waiting` do.
        measured_us: What a batch really takes.
        exits: Where rows leave early, and how many; without it all pass all layers.
        students: What answers in place of the layers; needs admission, which knows what waits.
        costs: What serving takes beside batches; by default nothing. Needs admission, whose forecast it goes by.
        seed: Of what is drawn while it runs.
        stages: How the layers are cut. The cost model is then of all layers on the threads of one stage.

    Raises:
        InvalidArgumentError: Students without admission, or with exits; costs without admission, or with `measured_us`;
            stages with exits or students.
    """

    def __init__(
        self,
        policy: Policy,
        cost_model: CostModel,
        capacity: Capacity = Capacity(),
        admission: AdmissionSettings | None = None,
        max_waiting: int = AdmissionSettings.max_waiting,
        measured_us: Callable[[BatchShape], float] | None = None,
        exits: Exits | None = None,
        students: Students | None = None,
        costs: ServerCosts | None = None,
        seed: int = 0,
        stages: Stages = WHOLE,
    ) -> None:
        if students is not None and (admission is None or exits is not None):
            raise InvalidArgumentError("students need admission, and have no exits")
        if costs is not None and (admission is None or measured_us is not None):
            raise InvalidArgumentError("costs of a server need admission, and say themselves what batches take")
        if len(stages.shares) > 1 and (exits, students) != (None, None):
            raise InvalidArgumentError("a server of several stages is simulated without ladders and students")
        self._policy = policy
        self._cost_model = cost_model
        self._capacity = capacity
        self._admission = admission
        self._max_waiting = max_waiting
        self._measured_us = measured_us or cost_model.predict_us
        self._answering = Answering(exits, students)
        self._costs = costs
        self._seed = seed
        self._stages = stages

    def run(self, load: SimulatedLoad, report: Report = lambda _: None) -> Simulation:
        """Play a load to its last answer."""
        load = self.as_met(load)
        run = self._run_on(self.intake(load), load.arrived_us.tolist(), None)
        duration_s = round(load.duration_s)
        for until_us in range(_STEP_US, duration_s * 1_000_000, _STEP_US):
            run.advance(until_us)
            report(Step("simulate", until_us // 1_000_000, duration_s))
        run.advance(math.inf)
        report(Step("simulate", duration_s, duration_s))
        return run.log.judged(load)

    def as_met(self, load: SimulatedLoad) -> SimulatedLoad:
        """Return a load as it meets the server: with a front, rows come to the engine when that has encoded them."""
        return load if self._costs is None else load.by_arrival().undelayed()

    @property
    def may_be_of_fleet(self) -> bool:
        """Whether what it holds is known from batch to batch: not where rows leave early, or stay for later stages."""
        return self._answering.exits is None and len(self._stages.shares) == 1

    def watched_run(self, offered_us: Sequence[int]) -> ServerRun:
        """Start a server of a fleet, which rows are added to; `offered_us` grows by what is sent to its host."""
        return self._run_on(OpenIntake(), offered_us, LateWatch())

    def intake(self, load: SimulatedLoad) -> WholeIntake:
        """Make the jobs of a load, as this server answers them."""
        exits = self._answering.exits
        leaving = np.zeros(len(load), bool) if exits is None else exits.leaving(len(load))
        return WholeIntake(load, leaving, self._depths, ROOT if self._answering.students is None else STUDENT_STACK)

    def anew(self, job: SimulatedJob, arrived_us: int, later_us: int) -> SimulatedJob:
        """Make the job of a request that comes once more, so much later; it has the same time as at first."""
        deadline_us = None if job.deadline_us is None else job.deadline_us + later_us
        return SimulatedJob(
            job.place,
            arrived_us,
            job.hplm_key,
            job.tenant,
            job.num_tokens,
            deadline_us,
            job.leaves,
            *self._depths,
            job.root,
        )

    @property
    def _depths(self) -> Depths:
        students, exits = self._answering.students, self._answering.exits
        if students is not None:
            return students.depths
        return Depths() if exits is None else exits.depths

    def _run_on(self, intake: Intake, offered_us: Sequence[int], late: LateWatch | None) -> ServerRun:
        admission = self._new_admission()
        queue = SimulatedQueue(self._policy, self._capacity, admission, late)
        machine: Machine = FreeMachine(self._measured_us)
        if len(self._stages.shares) > 1:
            machine = StagedMachine(self._measured_us, self._stages)
        if self._costs is not None:
            rng = np.random.default_rng(self._seed)
            machine = SharedMachine(self._costs, self._cost_model, offered_us, rng, self._stages)
            intake = FrontIntake(intake, self._costs.front)
        run = ServerRun(intake, queue, machine, admission, self._max_waiting, self._answering, late)
        if isinstance(intake, FrontIntake):
            intake.reject_with(run.log.reject)
        return run

    def _new_admission(self) -> Admission[SimulatedJob] | None:
        """Each load meets one that remembers no other, but what its batches took."""
        if self._admission is None:
            return None
        costs = self._learned_costs()
        admission: Admission[SimulatedJob] = Admission(
            lambda _: costs, self._capacity, self._admission, self._policy.order
        )
        admission.serves(ROOT if self._answering.students is None else STUDENT_STACK)
        return admission

    def _learned_costs(self) -> LiveCosts:
        model = self._cost_model.scaled(self._stages.slowest)
        costs = LiveCosts(model, self._stages.tail)
        if self._costs is not None:
            shape = BatchShape(self._capacity.max_rows, 20 * self._capacity.max_rows, 400 * self._capacity.max_rows, 8)
            for factor in islice(self._costs.scatter, _LEARNED_BATCHES):
                costs.observe(shape, factor * self._costs.cores.slowness * model.predict_us(shape))
        return costs
