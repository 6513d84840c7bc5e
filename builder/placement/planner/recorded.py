"""A recorded traffic as the planner meets it: requests for the models of a home, with moments as deadlines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backends.errors import InvalidArgumentError, shown
from backends.home import Home
from backends.registry.registry import Registry
from backends.scheduling.settings import Capacity
from builder.placement.planner.asked_stacks import AskedStacks
from builder.placement.planner.asked_traffic import AskedTraffic
from builder.placement.planner.group import Device
from builder.placement.planner.home_models import HomeModels, models_of
from builder.placement.planner.model import Model
from builder.placement.planner.planner import Fleet
from builder.placement.planner.problem import STAGE_COUNTS
from builder.placement.planner.traffic import Int64, Traffic
from workload.deadlines import LONGEST_DEADLINE_MS
from workload.traces import Trace

_US = 1_000_000


def recorded_fleet(
    home: Home,
    registry: Registry,
    asked: AskedTraffic,
    devices: tuple[Device, ...],
    seed: int,
    hop_us: int = 0,
    stage_counts: tuple[int, ...] = STAGE_COUNTS,
    capacity: Capacity = Capacity(),
    exported_dtype: str | None = None,
) -> Fleet:
    """Read all that a plan is made of; `capacity` is what a batch may hold.

    Without an `exported_dtype` the plan is for that of the profiles.

    Raises:
        HplmError: A root has no cost model, or the traffic asks for what is not there.
    """
    recorded, trace = asked.recorded, asked.trace
    means = asked.stacks.means(trace.tokens, recorded.tokens, asked.roots)
    models = models_of(home, registry, means, recorded.slots, capacity, exported_dtype)
    numbers = _numbers(asked.stacks, models)
    traffic = _traffic_of(asked, models, numbers, seed)
    hplms = num_hplms(trace, numbers, len(models.models))
    notes = (_dtype_line(models.dtype, exported_dtype),)
    return Fleet(models.models, devices, models.fingerprints, traffic, hop_us, hplms, stage_counts, notes)


def _dtype_line(dtype: str, exported: str | None) -> str:
    if exported is None:
        return f"Times and sizes are of dtype {dtype}, as the cost models were measured; there is no export yet."
    instead = "" if dtype == exported else f" in place of the exported {exported}, which a device may lack"
    return f"Times and sizes are of dtype {dtype}, in which the export serves{instead}."


def num_hplms(trace: Trace, numbers: Int64, num_models: int) -> tuple[int, ...]:
    """Count the hPLMs that each model is asked for."""
    if trace.tenants is None:
        return (0,) * num_models
    pairs = np.unique(np.stack([numbers, trace.tenants]), axis=1)
    return tuple(np.bincount(pairs[0], minlength=num_models).tolist())


def _numbers(asked: AskedStacks, models: HomeModels) -> Int64:
    """Return the model of each request."""
    number_of = models.number_of
    if missing := [name for name in asked.names if name not in number_of]:
        raise InvalidArgumentError(
            f"the traffic asks for {shown(missing[0])}, and its root has no students that its hPLMs go with"
        )
    return np.array([number_of[name] for name in asked.names], np.int64)[asked.of_requests]


def _traffic_of(asked: AskedTraffic, models: HomeModels, numbers: Int64, seed: int) -> Traffic:
    """Make the planner's traffic; `numbers` are the models of its requests.

    A speed of 2 plays an hour in half an hour, and leaves deadlines as they are.
    """
    arrived_us = (asked.trace.times_s / asked.recorded.speed * _US).astype(np.int64)
    patience_us = _patience_us(asked, models.models, numbers, seed)
    return Traffic(arrived_us, numbers, arrived_us + patience_us)


def _patience_us(asked: AskedTraffic, models: Sequence[Model], numbers: Int64, seed: int) -> Int64:
    trace = asked.trace
    if asked.deadlines is None:
        assert trace.deadlines_ms is not None, "as read_asked has checked"
        own_ms = np.where(np.isfinite(trace.deadlines_ms), trace.deadlines_ms, LONGEST_DEADLINE_MS)
        return (1_000 * own_ms).astype(np.int64)
    rng = np.random.default_rng(seed)
    patience_us = np.zeros(len(trace), np.int64)
    for number, model in enumerate(models):
        own = numbers == number
        drawn_ms = asked.deadlines.after(model.full_batch_us / 1e3).draw_ms(int(own.sum()), rng)
        patience_us[own] = 1_000 * drawn_ms
    return patience_us
