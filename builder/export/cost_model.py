"""The cost model that an export hands to the deadline batcher: of several roots, the one whose batches take longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch

from backends.engine.settings import EngineSettings
from backends.errors import HplmError
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.root.store import RootFolder
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.cost_profile import has_profile, profile_for
from backends.scheduling.settings import Capacity
from builder.export.settings import ExportSettings


def dearest_cost_model(
    home: Home, roots: Iterable[str], settings: ExportSettings, on_left_out: Callable[[str], None]
) -> CostModel | None:
    """Choose among the profiles that hold for the export; the others are left out and reported.

    Triton's batches may mix roots, and the plugin has one model: that of the slowest root ends no batch too late.
    """
    if settings.device == "gpu" and not torch.cuda.is_available():
        on_left_out("there is no GPU here to compare the cost models with; Triton will end no batch by its deadlines")
        return None
    device = f"cuda:{next(iter(settings.gpus), 0)}" if settings.device == "gpu" else "cpu"
    engine = EngineSettings.from_model(ModelSettings(home, settings.upper_parameters), device)
    full = full_batch(engine.capacity)
    models = _fitting_models(home, roots, engine, on_left_out)
    return max(models, key=lambda model: model.predict_us(full), default=None)


def _fitting_models(
    home: Home, roots: Iterable[str], engine: EngineSettings, on_left_out: Callable[[str], None]
) -> Iterator[CostModel]:
    for root in roots:
        folder = home.profile(root)
        if not has_profile(folder):
            on_left_out(f"root {root} has no cost model to end batches by; see 'hplm profile'")
            continue
        try:
            yield profile_for(folder, engine.measured(RootFolder(home.root(root)))).model
        except HplmError as error:
            on_left_out(f"the cost model of root {root} is left out: {error}; see 'hplm profile'")


def full_batch(capacity: Capacity) -> BatchShape:
    """Return the largest batch: as many rows as it may hold, alike, of as many hPLMs."""
    rows, tokens = capacity.max_rows, capacity.max_tokens
    return BatchShape(rows, tokens, tokens * tokens // rows, min(rows, capacity.max_adapters))
