"""What the planner's simulation says of each way, from the times of rows in its engines."""

from __future__ import annotations

import numpy as np

from bench.kit.stages.loads import Load
from bench.kit.stages.ways import POOL, PROCESSES, REPLICAS, SIMPLE, STAGES, RowTimes
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup, StageTimes
from builder.placement.planner.traffic import Int64

_BOTH = frozenset({0, 1})
_GROUPS = {
    SIMPLE: [PlacedGroup(1, frozenset({0})), PlacedGroup(1, frozenset({1}))],
    STAGES: [PlacedGroup(2, _BOTH)],
    PROCESSES: [PlacedGroup(2, _BOTH)],
    POOL: [PlacedGroup(1, _BOTH)],
    REPLICAS: [PlacedGroup(1, _BOTH)] * 2,
}


def foretold_mean_s(way: str, load: Load, times: RowTimes, max_rows: int = 1) -> float:
    """Return the mean latency that is foretold, with batches of up to `max_rows`."""
    groups = _GROUPS[way]
    stages = groups[0].num_stages
    alone_us = 1e6 * times.alone_s / stages
    if max_rows == 1:
        stage_times = StageTimes.of_requests((stages,), _table(alone_us, stages), _table(1e6 * times.busy_s, stages))
    else:
        further_us = max(0.0, (1e6 * max_rows * times.busy_s - alone_us) / (max_rows - 1))
        tables = _table(alone_us, stages), _table(alone_us, stages), _table(further_us, stages)
        stage_times = StageTimes((stages,), *tables, np.full(len(_BOTH), max_rows))
    return GroupSimulator(load.traffic, stage_times).play(groups).mean_latency_us / 1e6


def _table(stage_us: float, stages: int) -> Int64:
    """Return the same time for both roots and all stages."""
    return np.full((1, len(_BOTH), stages), round(stage_us), np.int64)
