"""AlpaServe's fast simulation of groups of devices: what a placement makes of a traffic, in a loop over its requests.

A request goes to the group whose last stage is free first, of those that hold its model. There it joins a batch of its
model that waits, or is a new batch behind all others. It is rejected at once where the clocks of the stages say that it
would be late, and when its batch begins, if requests that joined have made it late. Batches pass the stages first come,
first served. So the simulation ranks placements; it does not replace `builder.placement.Simulator`, which has policies,
admission and the time that serving takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from backends.errors import InvalidArgumentError
from builder.placement.planner.stage_clocks import walk_stages
from builder.placement.planner.traffic import Int64, Traffic


class PlacedGroup(NamedTuple):
    """A group as the search sees it: how many stages it has, and which models it holds."""

    num_stages: int
    models: frozenset[int]


@dataclass(frozen=True, eq=False)
class StageTimes:
    """What a batch takes of each stage, whatever group it is on.

    Attributes:
        stage_counts: The number of stages of each shape.
        latency_us: Time from when a batch of one request takes a stage to when it takes the next one.
        busy_us: How long a batch of one request occupies the stage.
        further_us: What each further request adds to both.
        full_rows: The most requests of a batch.

    Shape:
        latency_us, busy_us, further_us: `[shapes, models, stages]`, with 0 for stages that a shape does not have.
        full_rows: `[models]`.
    """

    stage_counts: tuple[int, ...]
    latency_us: Int64
    busy_us: Int64
    further_us: Int64
    full_rows: Int64

    def __post_init__(self) -> None:
        # The compiled loop would read beyond its tables.
        shapes = {self.latency_us.shape, self.busy_us.shape, self.further_us.shape}
        counts = self.stage_counts
        if len(shapes) > 1 or self.full_rows.shape != (self.num_models,) or len(counts) != len(self.latency_us):
            raise InvalidArgumentError(f"times of batches have the shapes {sorted(shapes)} and {self.full_rows.shape}")
        if max(counts) > self.latency_us.shape[2] or int(self.full_rows.min(initial=1)) < 1:
            raise InvalidArgumentError(f"there are no times of {max(counts)} stages, or full batches without requests")

    @classmethod
    def of_requests(cls, stage_counts: tuple[int, ...], latency_us: Int64, busy_us: Int64) -> StageTimes:
        """Return the times of requests that are a batch each."""
        return cls(stage_counts, latency_us, busy_us, np.zeros_like(busy_us), np.ones(busy_us.shape[1], np.int64))

    @property
    def num_models(self) -> int:
        return int(self.latency_us.shape[1])


@dataclass(frozen=True, eq=False)
class Played:
    """What became of a traffic.

    Shape:
        is_met: `[requests]`, answered in time; the others were rejected.
        finished_us: `[requests]`, without meaning for those that were rejected.
        used: `[groups]`, the share of the time in which a stage of the group worked, the mean of its stages.
    """

    traffic: Traffic
    is_met: NDArray[np.bool_]
    finished_us: Int64
    used: NDArray[np.float64]

    @property
    def attainment(self) -> float:
        return float(self.is_met.mean()) if len(self.traffic) else 1.0

    @property
    def mean_latency_us(self) -> float:
        """The mean of what was answered; 0 where nothing was."""
        latencies_us = (self.finished_us - self.traffic.arrived_us)[self.is_met]
        return float(latencies_us.mean()) if len(latencies_us) else 0.0

    @property
    def score(self) -> tuple[float, float]:
        """What a search compares: first the attainment, then the latency."""
        return self.attainment, -self.mean_latency_us

    def unserved(self, num_models: int) -> Int64:
        """Count the rejected requests of each model."""
        return np.bincount(self.traffic.models[~self.is_met], minlength=num_models)


class GroupSimulator:
    """Plays one traffic on any number of placements."""

    def __init__(self, traffic: Traffic, times: StageTimes) -> None:
        if int(traffic.models.max(initial=0)) >= times.num_models:
            raise InvalidArgumentError(f"the traffic has requests for more than {times.num_models} models")
        self.traffic = traffic
        columns = (traffic.arrived_us, traffic.models, traffic.deadlines_us)
        self._columns = [np.ascontiguousarray(column, np.int64) for column in columns]
        self._times = times
        self._shapes = {count: shape for shape, count in enumerate(times.stage_counts)}

    def play(self, groups: Sequence[PlacedGroup]) -> Played:
        traffic, times = self.traffic, self._times
        first_holder, holders = self._holders(groups)
        num_stages = np.array([group.num_stages for group in groups], np.int64)
        shape_of = np.array([self._shapes[group.num_stages] for group in groups], np.int64)
        finished_us, is_met = np.zeros(len(traffic), np.int64), np.zeros(len(traffic), np.bool_)
        used_us = np.zeros(len(groups), np.int64)
        by_group = (first_holder, holders, num_stages, shape_of)
        tables = (times.latency_us, times.busy_us, times.further_us, times.full_rows)
        walk_stages(*self._columns, *by_group, *tables, finished_us, is_met, used_us)
        return Played(traffic, is_met, finished_us, used_us / num_stages / max(1, traffic.duration_us))

    def _holders(self, groups: Sequence[PlacedGroup]) -> tuple[Int64, Int64]:
        """Return the groups that hold each model, one model after the other, and where each model's begin."""
        holds = np.zeros((self._times.num_models, len(groups)), np.bool_)
        for number, group in enumerate(groups):
            holds[list(group.models), number] = True
        models, holders = np.nonzero(holds)
        return np.searchsorted(models, np.arange(self._times.num_models + 1)), np.ascontiguousarray(holders)
