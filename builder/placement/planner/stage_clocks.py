"""The loop of the group simulator, compiled: requests make batches, which walk the clocks of their group's stages.

A batch waits until the first stage is free of the batches ahead. Until then requests of its model join it, up to a full
batch. When it begins, those that would be late are rejected. A batch is named by its first request.

The loop over requests is one function: with the choice of the group in a helper it takes 3.5 times as long without
batches, and 1.4 times with.

Shape:
    Requests are `[requests]`, `num_stages` and `shape_of` `[groups]`, times `[shapes, models, stages]`, `full_rows`
    `[models]`. The groups that hold model m are `holders[first_holder[m] : first_holder[m + 1]]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from backends.kernels.compiling import COUNTS, compiled

_TIMES, _FLAGS = types.int64[:, :, ::1], types.boolean[::1]
_REQUESTS, _GROUPS = (COUNTS,) * 3, (COUNTS,) * 4
_SIGNATURE = types.void(*_REQUESTS, *_GROUPS, _TIMES, _TIMES, _TIMES, COUNTS, COUNTS, _FLAGS, COUNTS)
_NONE = -1
_AT_THE_END = np.iinfo(np.int64).max


@njit(inline="always")
def _copy(source: Any, from_row: Any, target: Any, to_row: Any, stages: Any) -> None:
    for stage in range(stages):  # slices of arrays take ten times as long
        target[to_row, stage] = source[from_row, stage]


@njit(inline="always")
def _pass(clocks: Any, row: Any, stages: Any, shape: Any, model: Any, num_rows: Any, begin_us: Any, times: Any) -> Any:
    """Move a row of clocks by a batch; returns when it ends."""
    latency_us, busy_us, further_us = times
    ready_us = begin_us
    for stage in range(stages):
        start_us = max(ready_us, clocks[row, stage]) + (num_rows - 1) * further_us[shape, model, stage]
        clocks[row, stage] = start_us + busy_us[shape, model, stage]
        ready_us = start_us + latency_us[shape, model, stage]
    return ready_us


@njit(inline="always")
def _try(
    source: Any, row: Any, tried: Any, stages: Any, shape: Any, model: Any, num_rows: Any, begin_us: Any, times: Any
) -> Any:
    """Return when a batch would end behind some clocks, and leave the clocks behind it in `tried`."""
    _copy(source, row, tried, 0, stages)
    return _pass(tried, 0, stages, shape, model, num_rows, begin_us, times)


@njit(inline="always")
def _move_behind(
    batch: Any, group: Any, stages: Any, shape: Any, requests: Any, batches: Any, times: Any, clocks: Any
) -> None:
    """Set the clocks ahead of the batches behind one that has changed, and those behind all of its group."""
    arrived_us, models, _ = requests
    rows, ahead, next_batch, _ = batches
    _copy(ahead, batch, clocks, group, stages)
    while batch != _NONE:
        if rows[batch] > 0:
            _pass(clocks, group, stages, shape, models[batch], rows[batch], arrived_us[batch], times)
        batch = next_batch[batch]
        if batch != _NONE:
            _copy(clocks, group, ahead, batch, stages)


@njit(inline="always")
def _next_late(request: Any, ended_us: Any, deadlines_us: Any, next_in_batch: Any) -> Any:
    """Return the first request of a batch, from one on, that is late if the batch ends then."""
    while request != _NONE and deadlines_us[request] >= ended_us:
        request = next_in_batch[request]
    return request


@njit
def _begin(
    group: Any, now_us: Any, groups: Any, requests: Any, batches: Any, times: Any, clocks: Any, tried: Any, ends: Any
) -> None:
    """Begin the batches of a group whose time has come."""
    stages, shape, first_waiting = groups[0][group], groups[1][group], groups[2]
    finished_us, is_met, used_us = ends
    batch = first_waiting[group]
    arrived_us, models, deadlines_us = requests
    rows, ahead, next_batch, next_in_batch = batches
    _, busy_us, further_us = times
    while batch != _NONE and max(arrived_us[batch], ahead[batch, 0]) <= now_us:
        model, all_rows = models[batch], rows[batch]
        ended_us = _try(ahead, batch, tried, stages, shape, model, all_rows, arrived_us[batch], times)
        late = _next_late(batch, ended_us, deadlines_us, next_in_batch)
        while late != _NONE:  # the others end sooner without it, so those before it stay on time
            is_met[late] = False
            rows[batch] -= 1
            ended_us = _try(ahead, batch, tried, stages, shape, model, rows[batch], arrived_us[batch], times)
            late = _next_late(next_in_batch[late], ended_us, deadlines_us, next_in_batch)
        if rows[batch] < all_rows:
            _move_behind(batch, group, stages, shape, requests, batches, times, clocks)
        if rows[batch] > 0:
            for stage in range(stages):
                used_us[group] += busy_us[shape, model, stage] + (rows[batch] - 1) * further_us[shape, model, stage]
        request = batch
        while request != _NONE:
            finished_us[request] = ended_us
            request = next_in_batch[request]
        batch = next_batch[batch]
    first_waiting[group] = batch


@njit(inline="always")
def _join(request: Any, batch: Any, num_rows: Any, batches: Any, last_in_batch: Any) -> None:
    """Append a request to a batch, which then has `num_rows`."""
    rows, _, _, next_in_batch = batches
    rows[batch] = num_rows
    next_in_batch[request] = _NONE
    next_in_batch[last_in_batch[batch]] = request
    last_in_batch[batch] = request


@njit(inline="always")
def _wait(request: Any, group: Any, batches: Any, last_in_batch: Any, first_waiting: Any, last_waiting: Any) -> None:
    """Append a batch of one request to those that wait."""
    rows, _, next_batch, next_in_batch = batches
    rows[request], last_in_batch[request] = 1, request
    next_batch[request] = next_in_batch[request] = _NONE
    if first_waiting[group] == _NONE:
        first_waiting[group] = request
    else:
        next_batch[last_waiting[group]] = request
    last_waiting[group] = request


@compiled(_SIGNATURE)
def walk_stages(
    arrived_us: Any,
    models: Any,
    deadlines_us: Any,
    first_holder: Any,
    holders: Any,
    num_stages: Any,
    shape_of: Any,
    latency_us: Any,
    busy_us: Any,
    further_us: Any,
    full_rows: Any,
    finished_us: Any,
    is_met: Any,
    used_us: Any,
) -> None:
    """Fill `finished_us` and `is_met` for each request, and add to `used_us` how long stages of each group work."""
    num_groups, num_requests, most_stages = len(num_stages), len(arrived_us), latency_us.shape[2]
    clocks = np.zeros((num_groups, most_stages), np.int64)  # behind all batches
    first_waiting, last_waiting = np.full(num_groups, _NONE), np.full(num_groups, _NONE)
    open_batch = np.full((num_groups, latency_us.shape[1]), _NONE)
    # Of batches, and written when these are made: where there are none, this memory is never touched.
    rows, next_batch = np.empty(num_requests, np.int64), np.empty(num_requests, np.int64)
    last_in_batch, next_in_batch = np.empty(num_requests, np.int64), np.empty(num_requests, np.int64)
    ahead = np.empty((num_requests, most_stages), np.int64)  # the clocks that a batch finds
    tried = np.zeros((1, most_stages), np.int64)
    requests, times = (arrived_us, models, deadlines_us), (latency_us, busy_us, further_us)
    batches, groups = (rows, ahead, next_batch, next_in_batch), (num_stages, shape_of, first_waiting)
    ends = (finished_us, is_met, used_us)
    for request in range(num_requests):
        model, now_us = models[request], arrived_us[request]
        group, least_us = _NONE, _AT_THE_END
        for position in range(first_holder[model], first_holder[model + 1]):
            other = holders[position]
            batch = first_waiting[other]
            if batch != _NONE and max(arrived_us[batch], ahead[batch, 0]) <= now_us:
                _begin(other, now_us, groups, requests, batches, times, clocks, tried, ends)
            free_us = max(clocks[other, num_stages[other] - 1], now_us)
            if free_us < least_us:
                group, least_us = other, free_us
            if least_us == now_us:
                break
        if group == _NONE:
            continue
        stages, shape = num_stages[group], shape_of[group]
        waiting, batch = first_waiting[group], open_batch[group, model]
        if batch != _NONE and waiting != _NONE and batch >= waiting:  # else it has begun
            num_rows, begin_us = rows[batch] + 1, arrived_us[batch]
            if _try(ahead, batch, tried, stages, shape, model, num_rows, begin_us, times) <= deadlines_us[request]:
                _join(request, batch, num_rows, batches, last_in_batch)
                _move_behind(batch, group, stages, shape, requests, batches, times, clocks)
                is_met[request] = True
                if num_rows == full_rows[model]:
                    open_batch[group, model] = _NONE
                continue
        ended_us = _try(clocks, group, tried, stages, shape, model, 1, now_us, times)
        if ended_us > deadlines_us[request]:
            continue
        is_met[request] = True
        if waiting == _NONE and full_rows[model] == 1:  # nothing changes it any more
            _copy(tried, 0, clocks, group, stages)
            finished_us[request] = ended_us
            for stage in range(stages):
                used_us[group] += busy_us[shape, model, stage]
            continue
        _wait(request, group, batches, last_in_batch, first_waiting, last_waiting)
        _copy(clocks, group, ahead, request, stages)
        _copy(tried, 0, clocks, group, stages)
        open_batch[group, model] = request if full_rows[model] > 1 else _NONE
    for group in range(num_groups):
        _begin(group, _AT_THE_END, groups, requests, batches, times, clocks, tried, ends)
