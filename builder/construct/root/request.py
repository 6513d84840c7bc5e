"""What `hplm root add` is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from builder.construct.domain.settings import PlotSettings
from builder.construct.root.settings import DistilSettings


@dataclass(frozen=True)
class RootRequest:
    """One root's recipe.

    `distilled` names a file of weights that are trained already: taken as they are, or, with `distil`, gone on from.
    `sinks` lets fragments attend to what the special tokens are to whole texts; a file of weights brings its own.
    `held_out` names files of texts to measure the fidelity on; none of their texts is learnt from.
    """

    name: str
    source: str
    num_lower_layers: int
    corpus: tuple[Path, ...]
    max_tokens: int = 128
    n: int = 3
    sinks: bool = True
    held_out: tuple[Path, ...] = ()
    distilled: Path | None = None
    distil: DistilSettings | None = None
    plot: PlotSettings = field(default_factory=PlotSettings)

    @property
    def training(self) -> DistilSettings | None:
        """How to distil, if at all."""
        if self.distil is None and self.distilled is None:
            return DistilSettings()
        return self.distil
