"""What each model is in each shape: its cuts, and the time and memory of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backends.scheduling.cuts import Cut, equal_latency_cuts, stage_sums
from builder.placement.planner.group_simulator import StageTimes
from builder.placement.planner.model import Model
from builder.placement.planner.traffic import Int64


@dataclass(frozen=True, eq=False)
class Forms:
    """What each model is in each shape.

    Attributes:
        cuts: For each model its cut for each number of stages that it can have.

    Shape:
        stage_bytes: `[shapes, models, stages]`.
        is_possible: `[shapes, models]`.
    """

    cuts: tuple[Mapping[int, Cut], ...]
    times: StageTimes
    stage_bytes: Int64
    is_possible: NDArray[np.bool_]

    @classmethod
    def of(cls, models: Sequence[Model], stage_counts: Sequence[int], hop_us: int, memory_bytes: int) -> Forms:
        most = max(stage_counts)
        cuts = tuple(equal_latency_cuts(each.halves_us, each.halves_bytes, most, memory_bytes) for each in models)
        size = (len(stage_counts), len(models), most)
        latency_us, busy_us, further_us, sizes = (np.zeros(size, np.int64) for _ in range(4))
        is_possible = np.zeros(size[:2], np.bool_)
        for number, model in enumerate(models):
            for shape, stages in enumerate(stage_counts):
                cut = cuts[number].get(stages)
                if cut is None:
                    continue
                is_possible[shape, number] = True
                alone_us = np.array(stage_sums(model.halves_us, cut), np.int64)
                busy_us[shape, number, :stages] = latency_us[shape, number, :stages] = alone_us
                further_us[shape, number, :stages] = _parts(model.further_share * alone_us)
                latency_us[shape, number, : stages - 1] += hop_us
                sizes[shape, number, :stages] = stage_sums(model.halves_bytes, cut)
        full_rows = np.array([model.full_rows for model in models], np.int64)
        times = StageTimes(tuple(stage_counts), latency_us, busy_us, further_us, full_rows)
        return cls(cuts, times, sizes, is_possible)

    def shape(self, num_stages: int) -> int:
        """Return the row of the tables for a number of stages."""
        return self.times.stage_counts.index(num_stages)


def _parts(times_us: NDArray[np.float64]) -> Int64:
    """Round times so that their sum is the rounded sum: each error would come once for each row of a batch."""
    return np.diff(np.rint(np.cumsum(times_us)), prepend=0.0).astype(np.int64)
