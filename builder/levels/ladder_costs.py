"""What answers by a ladder are predicted to take, by the one cost model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from backends.engine.settings import EngineSettings
from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.root.store import RootFolder
from backends.scheduling.cost_model import OPTIMISTIC, BatchShape, CostModel
from backends.scheduling.cost_profile import profile_for
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.export.cost_model import full_batch
from builder.export.rendered import upper_settings

LATE = "late"
"""How it begins what is said of a deadline that is missed."""
_US_PER_MS = 1000.0
_BATCHES_TO_WAIT = 2
"""A row that comes may have to wait for the batch that runs, and runs in the next one."""


@dataclass(frozen=True)
class LadderCosts:
    """Predictions for the engine that a home's export describes.

    Attributes:
        model: Of the root; None where no profile of it holds for the export.
        capacity: What a full batch holds.
        margin: What admission multiplies predictions by.
    """

    model: CostModel | None
    capacity: Capacity
    margin: float

    @classmethod
    def of(cls, home: Home, root: str) -> LadderCosts:
        settings, on_gpu = upper_settings(home)
        engine = EngineSettings.from_model(settings, "cuda:0" if on_gpu and torch.cuda.is_available() else "cpu")
        margin = 1 + AdmissionSettings.from_model(settings).margin_percent / 100
        try:
            profile = profile_for(home.profile(root), engine.measured(RootFolder(home.root(root))))
        except HplmError:
            return cls(None, engine.capacity, margin)
        return cls(profile.model, engine.capacity, margin)

    def rank_us(self, work: float) -> float:
        """Return what a full batch takes, for a comparison; without a profile too.

        Args:
            work: The share of the layers that its rows' tokens pass in the mean.
        """
        return (self.model or OPTIMISTIC).predict_us(self._full(work))

    def alone_ms(self, tokens: float, depth: float, work: float) -> float | None:
        """Return what a row takes by itself; None without a profile.

        Args:
            tokens: Of the row.
            depth: The share of the layers that it passes in the mean.
            work: The share that its tokens pass, of which it may lose some on its way.
        """
        return self._ms(BatchShape(1, work * tokens, work * tokens * tokens, 1, depth))

    def full_batch_ms(self, work: float) -> float | None:
        """Return what a full batch takes whose rows' tokens pass this share of the layers in the mean."""
        return self._ms(self._full(work))

    def require_known(self, deadline_ms: float | None) -> None:
        """Check that it can be said whether a deadline is kept, if there is one."""
        if deadline_ms is not None and self.model is None:
            raise InvalidArgumentError(
                "--deadline-ms goes by the root's cost model, and there is none that holds for the export; "
                "'hplm profile' makes one"
            )

    def answered_within_ms(self, depth: float) -> float:
        """Return the time in which rows that all pass this share of the layers are answered while batches are full.

        By the margin of admission; 0 without a cost model.
        """
        return self.margin * _BATCHES_TO_WAIT * (self._ms(replace(self._full(depth), depth=depth)) or 0.0)

    def under_load(self, deadline_ms: float, least_depth: float | None) -> str:
        """Say how a deadline is kept while all batches are full; `LATE` and why where it is not.

        Args:
            deadline_ms: Of the requests.
            least_depth: The share of the layers before the early answer; None where no row can settle for it.
        """
        full_ms = self.answered_within_ms(1.0)
        if full_ms <= deadline_ms:
            return f"all layers answer within {full_ms:.3g} ms"
        if least_depth is None:
            return f"{LATE}: all layers take {full_ms:.3g} ms, and no row can settle"
        early_ms = self.answered_within_ms(least_depth)
        if early_ms > deadline_ms:
            return f"{LATE}: all layers take {full_ms:.3g} ms, and early answers still {early_ms:.3g} ms"
        return f"rows settle for early answers within {early_ms:.3g} ms; all layers take {full_ms:.3g} ms"

    def _full(self, work: float) -> BatchShape:
        """Return a full batch whose tokens pass this share in the mean, and some of its rows all layers."""
        full = full_batch(self.capacity)
        return BatchShape(full.rows, work * full.tokens, work * full.squared_lengths, full.adapters)

    def _ms(self, shape: BatchShape) -> float | None:
        return None if self.model is None else self.model.predict_us(shape) / _US_PER_MS
