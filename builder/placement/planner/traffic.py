"""Traffic as the planner meets it: when requests for which model come, and until when they are of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError

Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in the order of their arrival; models are numbers, as the planner's problem has them.

    Shape: [requests] each.
    """

    arrived_us: Int64
    models: Int64
    deadlines_us: Int64

    def __post_init__(self) -> None:
        if not len(self.arrived_us) == len(self.models) == len(self.deadlines_us):
            raise InvalidArgumentError("each request of a traffic has an arrival, a model and a deadline")
        if (np.diff(self.arrived_us) < 0).any():
            raise InvalidArgumentError("the requests of a traffic must be in the order of their arrival")

    @classmethod
    def of_models(cls, arrivals_us: Sequence[Int64], patience_us: Sequence[int]) -> Traffic:
        """Merge the arrivals of each model, whose requests are of use for its patience."""
        arrived = np.concatenate([np.zeros(0, np.int64), *arrivals_us])
        models = np.repeat(np.arange(len(arrivals_us)), [len(arrivals) for arrivals in arrivals_us])
        order = np.argsort(arrived, kind="stable")
        models = models[order]
        return cls(arrived[order], models, arrived[order] + np.asarray(patience_us, np.int64)[models])

    def __len__(self) -> int:
        return len(self.arrived_us)

    @property
    def duration_us(self) -> int:
        """The time from the first arrival to the last."""
        return int(self.arrived_us[-1] - self.arrived_us[0]) if len(self) else 0

    def counts(self, num_models: int) -> Int64:
        """Count each model's requests."""
        return np.bincount(self.models, minlength=num_models)

    def of(self, models: Sequence[int]) -> Traffic:
        """Keep the requests for some models."""
        return self.kept(np.isin(self.models, np.asarray(models, np.int64)))

    def within(self, begin_us: int, end_us: int) -> Traffic:
        """Keep the requests that arrive in a span, whose end is not of it."""
        return self.kept((self.arrived_us >= begin_us) & (self.arrived_us < end_us))

    def faster(self, times: float) -> Traffic:
        """Return the same requests at a multiple of their rate; each has the same time to be answered."""
        arrived_us = (self.arrived_us / times).astype(np.int64)
        return Traffic(arrived_us, self.models, arrived_us + self.deadlines_us - self.arrived_us)

    def kept(self, kept: NDArray[np.bool_]) -> Traffic:
        return Traffic(self.arrived_us[kept], self.models[kept], self.deadlines_us[kept])


def one_after_the_other(slices: Sequence[Traffic]) -> Traffic:
    """Join slices of a traffic, with so much time between them that none meets the queues of another."""
    moved: list[Traffic] = []
    begin_us = 0
    for each in slices:
        if len(each):
            shift_us = begin_us - int(each.arrived_us[0])
            moved.append(Traffic(each.arrived_us + shift_us, each.models, each.deadlines_us + shift_us))
            begin_us = int(moved[-1].deadlines_us.max()) + 1
    columns = [[getattr(each, name) for each in moved] for name in ("arrived_us", "models", "deadlines_us")]
    return Traffic(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in columns))
