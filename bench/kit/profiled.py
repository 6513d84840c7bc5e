"""The cost model of a bench's root: measured, fitted and stored as `hplm profile` does it, in this process."""

from __future__ import annotations

from collections.abc import Mapping

from backends.engine.settings import EngineSettings
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.scheduling.cost_model import CostModel
from builder.profiling.cost_profiling import ProfileSettings, profile_root


def profiled(home: Home, root: str, upper_parameters: Mapping[str, str], batches: int) -> CostModel:
    """For the engine that a server with these parameters runs; each batch is measured once."""
    engine = EngineSettings.from_model(ModelSettings(home, upper_parameters), "cpu")
    registry = Registry.open(home)
    profile = profile_root(home, registry, root, engine, ProfileSettings(batches, repeats=1), lambda _: None)
    registry.close()
    return profile.model
