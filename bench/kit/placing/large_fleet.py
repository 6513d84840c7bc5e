"""A large fleet with a million tenants, planned as `hplm place` does: how long it takes, and in how much memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.kit.placing.loads import devices, even_model
from builder.placement.planner.model import Model
from builder.placement.planner.planner import Fleet, plan
from builder.placement.planner.traffic import Traffic

_ALONE_US, _SIZE_BYTES = 12_000, 1_000_000_000
_ROOTS_PER_DEVICE = 4.5
_LOAD = 0.4
_SLO_SCALE = 5
_PER_HOST = 8
_ASKED_DEVICES = 1_000


@dataclass(frozen=True)
class FleetSettings:
    num_devices: int
    tenants: int = 1_000_000
    roots: int = 87
    recorded_s: float = 60.0


def fleet_row(settings: FleetSettings, seed: int) -> dict[str, float]:
    """Plan it once, with all that it is compared with; neither drawing its traffic counts nor reading a file of it."""
    models = tuple(even_model(f"r{number}", _ALONE_US, _SIZE_BYTES) for number in range(settings.roots))
    where = devices(settings.num_devices, round(_ROOTS_PER_DEVICE * _SIZE_BYTES), _PER_HOST)
    traffic = traffic_of(settings, models, np.random.default_rng(seed))
    fleet = Fleet(models, where, {model.root: model.root for model in models}, traffic)
    start_s = time.perf_counter()
    made = plan(fleet, seed)
    taken_s = time.perf_counter() - start_s
    return {
        "devices": settings.num_devices,
        "tenants": settings.tenants,
        "roots": settings.roots,
        "requests": len(traffic),
        "seconds": taken_s,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "in_time": made.alternatives[0].attainment or 0.0,
    }


def fleet_figures(row: dict[str, float]) -> dict[str, float]:
    """Return the time for 1,000 devices; of a smaller fleet it is multiplied by the number of devices."""
    return {
        "plan_s_1000_gpus": row["seconds"] * _ASKED_DEVICES / row["devices"],
        "planned_devices": row["devices"],
        "plan_peak_gb": row["peak_gb"],
    }


def traffic_of(settings: FleetSettings, models: Sequence[Model], rng: np.random.Generator) -> Traffic:
    """Draw a Poisson traffic of tenants whose rates fall with their ranks, each with a root of its own choice."""
    rates = rng.permutation(1.0 / np.arange(1, settings.tenants + 1))
    root_of = rng.integers(settings.roots, size=settings.tenants)
    weights = np.bincount(root_of, weights=rates, minlength=settings.roots)
    shares = weights / weights.sum()
    busy_us = np.array([model.busy_us for model in models])
    rate_per_s = _LOAD * settings.num_devices * 1e6 / float((shares * busy_us).sum())
    count = round(rate_per_s * settings.recorded_s)
    arrived_us = np.sort(rng.random(count) * settings.recorded_s * 1e6).astype(np.int64)
    return Traffic(arrived_us, rng.choice(settings.roots, count, p=shares), arrived_us + _SLO_SCALE * _ALONE_US)
