"""The loop of the group simulator, compiled: a request walks the clocks of a group's stages and is taken or rejected.

Shape:
    Requests are `[requests]`, `num_stages` and `shape_of` `[groups]`, times `[shapes, models, stages]`. The groups that
    hold model m are `holders[first_holder[m] : first_holder[m + 1]]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from backends.kernels.compiling import COUNTS, compiled

_TIMES, _FLAGS = types.int64[:, :, ::1], types.boolean[::1]
_SIGNATURE = types.void(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, _TIMES, _TIMES, COUNTS, _FLAGS, COUNTS)


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
    finished_us: Any,
    is_met: Any,
    used_us: Any,
) -> None:
    """Fill `finished_us` and `is_met` for each request, and add to `used_us` how long stages of each group work."""
    clocks = np.zeros((len(num_stages), latency_us.shape[2]), np.int64)
    for request in range(len(arrived_us)):
        model, now_us = models[request], arrived_us[request]
        first, end = first_holder[model], first_holder[model + 1]
        if first == end:
            continue
        group = holders[first]
        least_us = max(clocks[group, num_stages[group] - 1], now_us)
        for place in range(first + 1, end):
            if least_us == now_us:
                break
            other = holders[place]
            free_us = max(clocks[other, num_stages[other] - 1], now_us)
            if free_us < least_us:
                group, least_us = other, free_us
        shape = shape_of[group]
        ready_us = now_us
        for stage in range(num_stages[group]):
            ready_us = max(ready_us, clocks[group, stage]) + latency_us[shape, model, stage]
        if ready_us > deadlines_us[request]:
            continue
        is_met[request], finished_us[request] = True, ready_us
        ready_us = now_us
        for stage in range(num_stages[group]):
            start_us = max(ready_us, clocks[group, stage])
            clocks[group, stage] = start_us + busy_us[shape, model, stage]
            ready_us = start_us + latency_us[shape, model, stage]
            used_us[group] += busy_us[shape, model, stage]
