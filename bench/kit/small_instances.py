"""Small streams of jobs: what a policy answers of them in time, and the most that anybody could.

Time is counted in batches, all of which take the same, as in TCB's section 5.1. The optimum is that of its integer
programme (9)-(13), with what this engine's batches ask on top: so many rows at most, and one root.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp

from backends.scheduling.policies import Policy
from backends.scheduling.settings import Capacity
from backends.scheduling.waiting_room import WaitingRoom
from backends.stack_key import StackKey


@dataclass(frozen=True, eq=False)
class StreamedJob:
    """Runs in a batch that begins at `arrived_us` or later, and before `deadline_us`; a microsecond is one batch."""

    root: StackKey
    hplm_key: int
    num_tokens: int
    arrived_us: int
    deadline_us: int
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    exit_depth: float = 1.0
    kept: float = 1.0

    @property
    def worth(self) -> float:
        return 1 / self.num_tokens

    def may_run(self, batch: int) -> bool:
        return self.arrived_us <= batch < self.deadline_us


@dataclass(frozen=True)
class Instance:
    """All jobs, in the order in which they come."""

    jobs: Sequence[StreamedJob]
    capacity: Capacity

    @property
    def num_batches(self) -> int:
        return max(job.deadline_us for job in self.jobs)

    def reached_by(self, policy: Policy) -> float:
        """The worth of all that runs in time."""
        coming = {at: list(jobs) for at, jobs in groupby(self.jobs, key=lambda job: job.arrived_us)}
        room: WaitingRoom[StreamedJob] = WaitingRoom()
        reached = 0.0
        for batch in range(self.num_batches):
            room.add(coming.get(batch, []))
            room.take_late(batch)
            if len(room):
                reached += sum(job.worth for job in room.take_batch(policy.select(room, batch, self.capacity)))
        return reached


def random_instance(rng: random.Random) -> Instance:
    """Draw one where a policy may go wrong: lengths all alike or far apart, deadlines tight or loose."""
    num_batches = rng.randint(1, 4)
    max_tokens = rng.randint(8, 40)
    lengths = rng.choice([range(1, max_tokens + 1), range(max_tokens // 4, max_tokens // 2 + 1), (1, max_tokens)])
    roots = rng.choice(["a", "a", "ab"])
    jobs = []
    for key in range(rng.randint(2, 12)):
        arrived = rng.randrange(num_batches)
        deadline = min(num_batches, arrived + rng.choice([1, 1, 2, num_batches]))
        jobs.append(StreamedJob(StackKey(rng.choice(roots)), key, rng.choice(lengths), arrived, deadline))
    capacity = Capacity(max_rows=rng.choice([1, 2, 3, 12, 12]), max_tokens=max_tokens, max_adapters=12)
    return Instance(sorted(jobs, key=lambda job: job.arrived_us), capacity)


def optimum(instance: Instance) -> float:
    """The most that anybody could reach who knows the future; exact.

    Semantics:
        x[n, t] says that job n runs in batch t (13), which it may (12); y[r, t] that the batch is of root r. Each job
        runs at most once (10). A batch has one root, and of that root max_tokens (11) and max_rows at most.
    """
    runs = [(job, batch) for job in instance.jobs for batch in range(instance.num_batches) if job.may_run(batch)]
    turns = sorted({(job.root, batch) for job, batch in runs})
    limits = _Limits(num_variables=len(runs) + len(turns))
    for job in instance.jobs:
        limits.add({number: 1 for number, run in enumerate(runs) if run[0] is job}, at_most=1)
    for turn, at in enumerate(turns, start=len(runs)):
        of_turn = {number: job.num_tokens for number, (job, batch) in enumerate(runs) if (job.root, batch) == at}
        limits.add({**of_turn, turn: -instance.capacity.max_tokens}, at_most=0)
        limits.add({**dict.fromkeys(of_turn, 1), turn: -instance.capacity.max_rows}, at_most=0)
    for batch in range(instance.num_batches):
        limits.add({turn: 1 for turn, (_, at) in enumerate(turns, start=len(runs)) if at == batch}, at_most=1)
    return limits.maximum([job.worth for job, _ in runs])


class _Limits:
    """An integer programme whose variables are 0 or 1, limit by limit."""

    def __init__(self, num_variables: int) -> None:
        self._num_variables = num_variables
        self._rows: list[npt.NDArray[np.float64]] = []
        self._at_most: list[int] = []

    def add(self, coefficients: Mapping[int, int], at_most: int) -> None:
        row = np.zeros(self._num_variables)
        row[list(coefficients)] = list(coefficients.values())
        self._rows.append(row)
        self._at_most.append(at_most)

    def maximum(self, worths: Sequence[float]) -> float:
        """Maximise the sum of the first variables, each times its worth; it does not depend on the others."""
        objective = np.zeros(self._num_variables)
        objective[: len(worths)] = worths
        found = milp(
            -objective,
            integrality=np.ones(self._num_variables),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(np.array(self._rows), ub=self._at_most),
            options={"mip_rel_gap": 0},
        )
        if not found.success:
            raise RuntimeError(f"no optimum: {found.message}")
        return -float(found.fun)
