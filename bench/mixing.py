"""What do 64 different hPLMs in one batch cost over one?

64 rows of 128 tokens, of 1, 2, 8 and 64 hPLMs: with a bottleneck of 64 after each attention, and with what
`hplm create` makes by default, LoRA of rank 16 on all six modules and LayerNorms of its own. Beside the engine runs the
reference: the same layers, with a Python loop in each that gives one row after the other its own adapter.
"""

from __future__ import annotations

import copy
import statistics
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from backends.adapters.adapter_set import PROJECTED, AdapterSet
from backends.adapters.device_bank import AdapterBank
from backends.adapters.segments import Segment
from backends.root.encoder import Projection, Site
from bench.kit.bare import ROWS, BareEngine, bare_engine, interleaved, median_ratio
from bench.kit.entry import Result, at_most, bench
from bench.kit.random_root import RECIPES
from bench.limit import geometry_of

DISTINCT = (1, 2, 8, 64)


@dataclass(frozen=True)
class Settings:
    layers: int
    repeats: int
    rows: int = ROWS
    length: int = 128
    width: int = 64
    dtype: str = "bf16"
    timing: str = "all ways in turn, the median of the ratios within each turn"


FULL = Settings(layers=6, repeats=9)
QUICK = Settings(layers=1, repeats=3)


class LoopedAdapters:
    """One product per segment and part, in a Python loop."""

    def __init__(self, bank: AdapterBank, segments: Sequence[Segment]) -> None:
        self._of_slots = {segment.slot: bank.held(segment.slot) for segment in segments}
        self.held = [(segment.tokens, self._of_slots[segment.slot]) for segment in segments]

    def narrowed(self, segments: Sequence[Segment]) -> LoopedAdapters:
        narrower = copy.copy(self)
        narrower.held = [(segment.tokens, self._of_slots[segment.slot]) for segment in segments]
        return narrower

    def enter(self, hidden: Tensor) -> Tensor:
        return torch.cat([adapters.enter(hidden[tokens]) for tokens, adapters in self.held])

    def layer(self, index: int) -> LoopedLayer:
        return LoopedLayer(self.held, index)


@dataclass(frozen=True)
class LoopedLayer:
    held: Sequence[tuple[slice, AdapterSet]]
    index: int

    def changes(self, name: Projection) -> bool:
        return any(module in adapters.loras for _, adapters in self.held for module in PROJECTED[name])

    def project(self, name: Projection, inputs: Tensor, outputs: Tensor) -> Tensor:
        if self.changes(name):
            for tokens, adapters in self.held:
                outputs[tokens] = adapters.layer(self.index).project(name, inputs[tokens], outputs[tokens])
        return outputs

    def reads_states(self, site: Site) -> bool:
        return True

    def add_and_norm(self, site: Site, states: Tensor, residual: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        if residual is None:
            raise ValueError("these adapters read what comes to the residual")
        return torch.cat(
            [
                adapters.layer(self.index).add_and_norm(site, states[tokens], residual[tokens], norm)
                for tokens, adapters in self.held
            ]
        )


def measure(
    engine: BareEngine, settings: Settings, adapters: str, suffix: str
) -> tuple[dict[str, float], list[dict[str, object]]]:
    segmented = engine.stack(dtype=settings.dtype)
    looped = engine.stack(dtype=settings.dtype, adapters_of=LoopedAdapters)
    rows = engine.rows([settings.length] * settings.rows)
    ways = {f"{number} hPLMs": engine.waiting(segmented, rows, number).run for number in DISTINCT}
    most = f"{DISTINCT[-1]} hPLMs"
    ways["loop"] = engine.waiting(looped, rows, DISTINCT[-1]).run
    seconds = interleaved(ways, settings.repeats)
    one = seconds[f"{DISTINCT[0]} hPLMs"]
    figures = {
        f"mixed_64_over_1{suffix}": median_ratio(seconds[most], one),
        f"loop_over_segmented{suffix}": median_ratio(seconds["loop"], seconds[most]),
    }
    table: list[dict[str, object]] = [
        {
            "adapters": adapters,
            "batch": f"{DISTINCT[-1]} hPLMs, Python loop" if name == "loop" else name,
            "milliseconds": 1000 * statistics.median(of_way),
            "rows per second": settings.rows / statistics.median(of_way),
            "over one hPLM": median_ratio(of_way, one),
        }
        for name, of_way in seconds.items()
    ]
    return figures, table


@bench(
    "mixing",
    bars={"mixed_64_over_1": at_most(1.1)},
)
def mixing(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    for adapters, (suffix, recipe) in RECIPES.items():
        with bare_engine(geometry_of(settings.layers), DISTINCT[-1], options.seed, recipe) as engine:
            of_recipe, table = measure(engine, settings, adapters, suffix)
        figures.update(of_recipe)
        rows += table
    return Result(asdict(settings), figures, rows)


if __name__ == "__main__":
    mixing.main()
