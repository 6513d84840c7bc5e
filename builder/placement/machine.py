"""What batches take on a simulated machine, from the choice of their rows to the last answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from backends.scheduling.cost_model import BatchShape, CostModel
from builder.placement.server_costs import ServerCosts
from builder.placement.simulated_job import SimulatedJob
from builder.placement.simulated_stages import WHOLE, Stages


class Machine(Protocol):
    """Told of one batch after the other, and of all that takes cores meanwhile."""

    @property
    def is_slowed(self) -> bool:
        """Whether rows that are taken in delay the end of the batch that runs."""
        ...

    def staging_us(self, jobs: Sequence[SimulatedJob]) -> int:
        """Return how long it takes to lay out a batch that was chosen."""
        ...

    def alone_us(self, shape: BatchShape) -> int:
        """Return what a batch takes on free cores."""
        ...

    def begin(self, shape: BatchShape, start_us: int) -> None:
        """Run a batch from now on."""
        ...

    def end_us(self) -> int:
        """Return when the next batch may run, as far as that is known; more that is known makes it later."""
        ...

    def answered_us(self, num_rows: int, end_us: int) -> int:
        """Return when it is judged whether rows of a batch that is done are on time."""
        ...

    def note_received(self, num_rows: int) -> None:
        """Count rows that have come to the engine."""
        ...


class FreeMachine:
    """Nothing but batches takes time.

    Args:
        measured_us: What a batch takes.
    """

    is_slowed = False

    def __init__(self, measured_us: Callable[[BatchShape], float]) -> None:
        self._measured_us = measured_us
        self._end_us = 0

    def staging_us(self, jobs: Sequence[SimulatedJob]) -> int:
        return 0

    def alone_us(self, shape: BatchShape) -> int:
        return max(1, round(self._measured_us(shape)))

    def begin(self, shape: BatchShape, start_us: int) -> None:
        self._end_us = start_us + self.alone_us(shape)

    def end_us(self) -> int:
        return self._end_us

    def answered_us(self, num_rows: int, end_us: int) -> int:
        return end_us

    def note_received(self, num_rows: int) -> None:
        pass


class StagedMachine(FreeMachine):
    """A machine whose stages stand one behind the other: a batch takes the next one before it leaves its own.

    Args:
        measured_us: What a batch takes in all stages.
        stages: What it takes in each.
    """

    def __init__(self, measured_us: Callable[[BatchShape], float], stages: Stages) -> None:
        super().__init__(measured_us)
        self._shares = stages.shares
        self._left_us = [0] * (len(stages.shares) + 1)
        """When the last batch left each stage; behind the last one nothing holds it up."""

    def begin(self, shape: BatchShape, start_us: int) -> None:
        left_us, taken_us = start_us, self.alone_us(shape)
        for stage, share in enumerate(self._shares):
            left_us = max(left_us + max(1, round(share * taken_us)), self._left_us[stage + 1])
            self._left_us[stage] = left_us
        self._end_us = self._left_us[0]

    def answered_us(self, num_rows: int, end_us: int) -> int:
        return self._left_us[-2]


class SharedMachine:
    """A machine whose cores compute and take requests in; its batches scatter as measured ones do.

    Of several stages each one behind the first takes longer by what is sent while it computes, as the first does, and
    as if as many rows were received meanwhile as in the first: that is not known when a batch leaves it.

    Args:
        costs: What was measured.
        model: What batches take by their shape, in all stages.
        offered_us: When requests are sent to this host, ascending. Without stages it may grow up to the moment that is
            played.
        rng: Draws where the measured scatter begins.
        stages: How the layers are cut.
    """

    def __init__(
        self,
        costs: ServerCosts,
        model: CostModel,
        offered_us: Sequence[int],
        rng: np.random.Generator,
        stages: Stages = WHOLE,
    ) -> None:
        self._costs = costs
        self._model = model
        self._offered_us = offered_us
        self._scatter = costs.scatter
        self._next_scatter = int(rng.integers(len(costs.scatter)))
        self._start_us = self._alone_us = 0
        self._num_received = self._received_before = 0
        self._answering_until_us = 0
        self._shares = stages.shares
        self._left_us = [0] * (len(stages.shares) + 1)
        """When the last batch left each stage behind the first; behind the last one nothing holds it up."""

    @property
    def is_slowed(self) -> bool:
        return self._costs.cores.is_slowing

    def staging_us(self, jobs: Sequence[SimulatedJob]) -> int:
        return round(self._costs.staging.of(len(jobs)))

    def alone_us(self, shape: BatchShape) -> int:
        factor = self._costs.cores.slowness * self._scatter[self._next_scatter]
        return max(1, round(factor * self._model.predict_us(shape)))

    def begin(self, shape: BatchShape, start_us: int) -> None:
        self._next_scatter = (self._next_scatter + 1) % len(self._scatter)
        self._start_us, self._alone_us = start_us, self.alone_us(shape)
        self._received_before = self._num_received

    def end_us(self) -> int:
        return max(self._through_us(0, self._start_us), self._left_us[1])

    def answered_us(self, num_rows: int, end_us: int) -> int:
        """Batches are answered one after the other."""
        for stage in range(1, len(self._shares)):
            end_us = self._left_us[stage] = max(self._through_us(stage, end_us), self._left_us[stage + 1])
        begin_us = max(end_us, self._answering_until_us)
        self._answering_until_us = begin_us + round(self._costs.answering.of(num_rows))
        return begin_us

    def note_received(self, num_rows: int) -> None:
        self._num_received += num_rows

    def _through_us(self, stage: int, start_us: int) -> int:
        """Go on from the end that is known so far as long as requests of the meantime move it."""
        cores, first = self._costs.cores, bisect_left(self._offered_us, start_us)
        received = self._num_received - self._received_before
        alone_us = max(1, round(self._shares[stage] * self._alone_us))
        latest_us = start_us + round(cores.most_stretch * alone_us)
        end_us = start_us + alone_us
        while end_us < latest_us:
            offered = bisect_left(self._offered_us, end_us, first) - first
            moved_us = start_us + alone_us + round(cores.taken_us(offered, received))
            if moved_us <= end_us:
                break
            end_us = min(moved_us, latest_us)
        return end_us
