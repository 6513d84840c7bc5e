"""A large fleet: a million tenants in families, planned in cells; how long it takes, and in how much memory."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.kit.placing.loads import devices, even_model
from builder.placement.planner.cells import Families, plan_in_cells
from builder.placement.planner.model import Model
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
    families: int = 10_000
    roots: int = 87
    requests_per_cell: int = 30_000


def fleet_row(settings: FleetSettings, seed: int) -> dict[str, float]:
    """Plan it once; the making of the traffic does not count, the pass over the tenants does."""
    rng = np.random.default_rng(seed)
    rates = rng.permutation(1.0 / np.arange(1, settings.tenants + 1))
    family_of_tenant = rng.integers(settings.families, size=settings.tenants)
    models = tuple(even_model(f"r{number}", _ALONE_US, _SIZE_BYTES) for number in range(settings.roots))
    where = devices(settings.num_devices, round(_ROOTS_PER_DEVICE * _SIZE_BYTES), _PER_HOST)
    start_s = time.perf_counter()
    weights = np.bincount(family_of_tenant, weights=rates, minlength=settings.families).astype(np.float64)
    families = families_of(weights, settings, models, rng)
    planned = plan_in_cells(models, where, families, seed)
    taken_s = time.perf_counter() - start_s
    return {
        "devices": settings.num_devices,
        "tenants": settings.tenants,
        "families": settings.families,
        "roots": settings.roots,
        "cells": len(planned),
        "seconds": taken_s,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "in_time": float(np.mean([cell.attainment for cell in planned])),
    }


def fleet_figures(row: dict[str, float]) -> dict[str, float]:
    """Return the time for 1,000 devices; of a smaller fleet it is multiplied by the number of devices."""
    return {
        "plan_s_1000_gpus": row["seconds"] * _ASKED_DEVICES / row["devices"],
        "planned_devices": row["devices"],
        "plan_peak_gb": row["peak_gb"],
    }


def families_of(
    weights: NDArray[np.float64],
    settings: FleetSettings,
    models: tuple[Model, ...],
    rng: np.random.Generator,
) -> Families:
    """Draw a Poisson traffic of as many requests as the cells are to see, at the rate that loads the devices."""
    own = rng.integers(settings.roots, size=settings.families)
    shares = weights / weights.sum()
    busy_us = np.array([model.busy_us for model in models])[own]
    rate_per_s = _LOAD * settings.num_devices * 1e6 / float((shares * busy_us).sum())
    count = settings.requests_per_cell * max(1, settings.num_devices // 64)
    arrived_us = np.sort(rng.random(count) * count / rate_per_s * 1e6).astype(np.int64)
    requests = Traffic(arrived_us, rng.choice(settings.families, count, p=shares), arrived_us + _SLO_SCALE * _ALONE_US)
    return Families(own, shares * rate_per_s * busy_us / 1e6, requests)
