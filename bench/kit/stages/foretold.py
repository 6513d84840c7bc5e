"""What the planner's simulation says of each way, from the times of rows in its engines."""

from __future__ import annotations

import numpy as np

from bench.kit.stages.loads import Load
from bench.kit.stages.ways import POOL, PROCESSES, REPLICAS, SIMPLE, STAGES, RowTimes
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup, StageTimes

_BOTH = frozenset({0, 1})
_GROUPS = {
    SIMPLE: [PlacedGroup(1, frozenset({0})), PlacedGroup(1, frozenset({1}))],
    STAGES: [PlacedGroup(2, _BOTH)],
    PROCESSES: [PlacedGroup(2, _BOTH)],
    POOL: [PlacedGroup(1, _BOTH)],
    REPLICAS: [PlacedGroup(1, _BOTH)] * 2,
}


def foretold_s(way: str, load: Load, times: RowTimes) -> float:
    """Return the mean latency that is foretold."""
    groups = _GROUPS[way]
    stages = groups[0].num_stages
    shape = (1, 2, stages)
    alone_us = np.full(shape, round(1e6 * times.alone_s / stages), np.int64)
    busy_us = np.full(shape, round(1e6 * times.busy_s), np.int64)
    played = GroupSimulator(load.traffic, StageTimes((stages,), alone_us, busy_us)).play(groups)
    return played.mean_latency_us / 1e6
