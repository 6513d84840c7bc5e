"""The request for a root."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from backends.names import check_name
from builder.requests.base import Device, Request
from builder.settings.device import AUTO
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings


class AddRoot(Request):
    """One root's recipe.

    `lower` counts the layers that become the table. `distilled` names a file of weights that are trained already: taken
    as they are, or, with `distil`, gone on from. `sinks` lets fragments attend to what the special tokens are to whole
    texts; a file of weights brings its own. `held_out` names files of texts to measure the fidelity on; none of their
    texts is learnt from. `device` is where it is trained, and no part of the recipe.
    """

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "root"))]
    source: str
    lower: int
    corpus: list[Path]
    max_tokens: int = 128
    n: int = 3
    sinks: bool = True
    held_out: list[Path] = Field(default_factory=list)
    distilled: Path | None = None
    distil: DistilSettings | None = None
    plot: PlotSettings = Field(default_factory=PlotSettings)
    device: Device = AUTO

    @property
    def training(self) -> DistilSettings | None:
        """The settings of the distillation, if there is one."""
        if self.distil is None and self.distilled is None:
            return DistilSettings()
        return self.distil
