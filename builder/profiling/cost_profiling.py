"""Measuring a root's batches on this machine, and fitting the cost model that the engine predicts with.

Usage:
    with progress_bars("mini") as report:
        profile = profile_root(home, registry, "mini", settings, ProfileSettings(), report)
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from backends.engine.settings import EngineSettings
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.cost_profile import CostProfile, write_profile
from backends.scheduling.estimator import Sample, fit, mean_absolute_percentage_error
from builder.profiling.engine import ProfiledEngine
from builder.profiling.shapes import PlannedBatch, planned_batches
from builder.progress import Report, Step

_HELD_OUT = 4
"""One batch of so many is not fitted to, but predicted."""
_WARM_UP = 3
_MIN_BATCHES = 40
_TYPICAL = PlannedBatch([16] * 16, adapters=1, leaves=[False] * 16)
"""What layers are compared by."""


@dataclass(frozen=True)
class ProfileSettings:
    """Different batches to measure, and how often each; the median counts."""

    batches: int = 160
    repeats: int = 9
    seed: int = 17

    def __post_init__(self) -> None:
        if self.batches < _MIN_BATCHES:
            raise InvalidArgumentError(f"a profile needs at least {_MIN_BATCHES} batches, not {self.batches}")
        if self.repeats < 1:
            raise InvalidArgumentError(f"each batch is measured at least once, not {self.repeats} times")


def profile_root(
    home: Home, registry: Registry, root: str, engine: EngineSettings, settings: ProfileSettings, report: Report
) -> CostProfile:
    """Measured, fitted, stored; what was stored before serves until then."""
    torch.set_num_threads(engine.stage_threads)
    profiled = ProfiledEngine(home, registry, root, engine.stack, settings.seed)
    samples = _measured(profiled, engine, settings, report)
    held_out = samples[::_HELD_OUT]
    fitted_to = [sample for index, sample in enumerate(samples) if index % _HELD_OUT]
    model = fit(fitted_to)
    error = mean_absolute_percentage_error(model, held_out)
    measured = engine.measured(RootFolder(home.root(root)))
    layers_us = profiled.layers_us(_TYPICAL, settings.repeats)
    profile = CostProfile(model, measured, str(torch.__version__), len(samples), error, layers_us)
    write_profile(home.profile(root), profile)
    return profile


def _measured(
    engine: ProfiledEngine, settings: EngineSettings, profile: ProfileSettings, report: Report
) -> Sequence[Sample]:
    """Each batch's median; the repeats lie apart, so that a slow moment of the machine meets each batch once."""
    planned = planned_batches(profile.batches, settings.capacity, engine.max_length, profile.seed)
    for batch in planned[:_WARM_UP]:
        engine.run(batch)
    measured: list[list[Sample]] = [[] for _ in planned]
    rng = np.random.default_rng(profile.seed)
    total = profile.repeats * len(planned)
    for repeat in range(profile.repeats):
        for done, index in enumerate(rng.permutation(len(planned)), start=1):
            measured[index].append(engine.run(planned[index]))
            report(Step("measure batches", repeat * len(planned) + done, total, _described(planned[index])))
    return [Sample(one[0].shape, statistics.median(sample.measured_us for sample in one)) for one in measured]


def _described(batch: PlannedBatch) -> str:
    return f"{len(batch.lengths)} rows, {sum(batch.lengths)} tokens, {batch.adapters} hPLMs"
