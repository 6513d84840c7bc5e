"""What placing anew for every window would come to: AlpaServe's Clockwork++, which knows each window's own requests.

No operator can do that; where moves are free it bounds what any change of placements can gain. Where they are timed, a
device is busy for as long as it loads the roots that it did not hold before. Queues are forgotten between windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from builder.placement.planner.baselines import replicated
from builder.placement.planner.group_simulator import GroupSimulator, PlacedGroup, StageTimes
from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Selection
from builder.placement.planner.traffic import Int64, Traffic

FREE, TIMED = "anew each window, moves free", "anew each window, moves timed"
_NUM_WINDOWS = 8


def replaced(problem: Problem, loaded_bytes_per_s: int | None) -> float:
    """Return the attainment of selective replication that is solved anew for each window; None makes moves free."""
    met, held = 0, [frozenset[int]()] * len(problem.devices)
    for window in _windows(problem.traffic):
        selection = replicated(replace(problem, traffic=window))
        loads_us = np.zeros(len(held), np.int64)
        if loaded_bytes_per_s is not None:
            new = [now - before for now, before in zip(selection.held, held, strict=True)]
            loads_us = _loads_us(problem, new, loaded_bytes_per_s)
        met += _met(problem, selection, window, loads_us)
        held = list(selection.held)
    return met / len(problem.traffic)


def _windows(traffic: Traffic) -> list[Traffic]:
    begin_us = int(traffic.arrived_us[0])
    edges = np.linspace(begin_us, begin_us + traffic.duration_us + 1, _NUM_WINDOWS + 1).astype(np.int64).tolist()
    spans = (traffic.within(begin, end) for begin, end in pairwise(edges))
    return [span for span in spans if len(span)]


def _loads_us(problem: Problem, new: Sequence[frozenset[int]], loaded_bytes_per_s: int) -> Int64:
    sizes = [sum(problem.models[model].size_bytes for model in models) for models in new]
    return np.array([size * 1_000_000 // loaded_bytes_per_s for size in sizes], np.int64)


def _met(problem: Problem, selection: Selection, window: Traffic, loads_us: Int64) -> int:
    """Count what is in time. A load is a request of a model of its own, which comes first and only to its device."""
    count = len(problem.models)
    loads = np.arange(count, count + len(loads_us))
    begin_us = np.full(len(loads), window.arrived_us[0])
    traffic = Traffic(
        np.concatenate([begin_us, window.arrived_us]),
        np.concatenate([loads, window.models]),
        np.concatenate([begin_us + loads_us, window.deadlines_us]),
    )
    groups = [PlacedGroup(1, held | {count + number}) for number, held in enumerate(selection.held)]
    played = GroupSimulator(traffic, _with_loads(problem.forms.times, loads_us)).play(groups)
    return int(played.is_met[len(loads) :].sum())


def _with_loads(times: StageTimes, loads_us: Int64) -> StageTimes:
    """Return times with further models, one for each load."""
    tables = (times.latency_us, times.busy_us, times.further_us)
    latency_us, busy_us, further_us = (np.pad(each, ((0, 0), (0, len(loads_us)), (0, 0))) for each in tables)
    latency_us[0, times.num_models :, 0] = busy_us[0, times.num_models :, 0] = loads_us
    full_rows = np.pad(times.full_rows, (0, len(loads_us)), constant_values=1)
    return StageTimes(times.stage_counts, latency_us, busy_us, further_us, full_rows)
