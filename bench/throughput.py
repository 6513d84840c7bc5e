"""How many rows a second does a server answer for 1 to 10,000 tenants, shared as hPLMs or each with a model of its own?

Real Triton, rows of 128 tokens, tenants drawn uniformly, every cell once in every repeat, in random order. The schemes:
hplm: PLOT, six shared layers, adapters as `hplm create` makes them by default. plot: PLOT, six layers of each tenant's
own. adapters: twelve shared layers, adapters, no PLOT. shared: twelve shared layers, heads only. dedicated: twelve
layers of each tenant's own, their embeddings shared. What tenants do not share is swapped in one process within the
memory of `resident` whole models. PLOT holds every tri-gram of the texts, so no lower layers are computed for hPLMs.
With `--int8` hPLMs and the dedicated models of 16 tenants compute in int8.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from backends.engine.precision import missing_for
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, bench
from bench.kit.progress import one_by_one
from bench.kit.random_root import HEAD_ONLY
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.synthetic_home import BERT_BASE, BaseHome, Family, Words, base_home
from bench.kit.whole_models import write_whole_models
from bench.kit.whole_repository import render_whole_models
from builder.settings.hplm import LORA_EVERYWHERE
from loadtest.in_process import Played

Cell = tuple[str, int]
"""A scheme and the number of tenants."""

_WHOLE = ("plot", "dedicated", "dedicated_cold")
_HALF_SCHEME = "plot"
_WARM_ROWS = 32
_EDGE_ROWS = 64
"""A batch of whole models is answered all at once, so an edge is no less than one."""
_SHARED = (("half", "hplm", LORA_EVERYWHERE), ("whole", "adapters", LORA_EVERYWHERE), ("whole", "shared", HEAD_ONLY))
"""Schemes whose tenants share layers: root, name, adapters."""


@dataclass(frozen=True)
class Settings:
    geometry: str
    rows: int
    slow_rows: int
    repeats: int
    cells: tuple[Cell, ...]
    length: int = 128
    texts: int = 256
    in_flight: int = 128
    resident: int = 16
    distinct_files: int = 16
    dtype: str = "bf16"
    slots: int = 128


FULL = Settings(
    geometry="BERT-base, 12 x 768 as 6 + 6",
    rows=512,
    slow_rows=384,
    repeats=5,
    cells=(
        *(("hplm", tenants) for tenants in (1, 16, 100, 1_000, 10_000)),
        *((scheme, tenants) for scheme in ("adapters", "shared") for tenants in (16, 10_000)),
        *(("plot", tenants) for tenants in (16, 1_000)),
        *(("dedicated", tenants) for tenants in (1, 16, 100, 1_000)),
        ("dedicated_cold", 1_000),
    ),
)
QUICK = replace(
    FULL,
    rows=192,
    slow_rows=192,
    repeats=1,
    distinct_files=4,
    cells=(
        *(("hplm", tenants) for tenants in (1, 16, 1_000, 10_000)),
        *((scheme, 16) for scheme in ("adapters", "shared", "plot")),
        *(("dedicated", tenants) for tenants in (16, 1_000)),
        ("dedicated_cold", 1_000),
    ),
)


@dataclass(frozen=True)
class Schemes:
    """A home with everything that the cells ask, and the repository that serves it."""

    base: BaseHome
    settings: Settings
    geometry: RootGeometry
    rng: np.random.Generator

    def build(self) -> list[str]:
        """The texts that may be asked."""
        words = Words(self.geometry.vocab_size)
        texts = [words.text(self.rng, self.settings.length) for _ in range(self.settings.texts)]
        layers = self.geometry.num_lower_layers + self.geometry.num_upper_layers
        deep = replace(self.geometry, num_lower_layers=1, num_upper_layers=layers)
        self.base.add_root("half", self.geometry, texts)
        # Single tokens only: what it looks up are a model's embeddings.
        self.base.add_root("whole", deep, [])
        for root, scheme, recipe in _SHARED:
            if count := self._tenants(scheme):
                self.base.add_hplms(Family(root, scheme, count, recipe=recipe))
        for scheme, geometry in (("plot", self.geometry), ("dedicated", deep)):
            count = max(self._tenants(name) for name in _WHOLE if name.startswith(scheme))
            tenants = [f"{scheme}{number}" for number in range(count)]
            write_whole_models(self._models(scheme), geometry, tenants, self.settings.distinct_files)
        return texts

    def rows_per_s(self, url: str, cell: Cell, texts: Sequence[str]) -> float:
        settings, edge_rows = self.settings, _EDGE_ROWS
        if cell[0] in _WHOLE and not self._is_slow(cell):
            # Resident ones are read when they are asked first, and brought into the product's order the second time.
            for _ in range(2):
                saturate(url, [(hplm, texts[0]) for hplm in self._asked(cell)], settings.in_flight, _model(cell))
        count = settings.slow_rows if self._is_slow(cell) else settings.rows
        return self.play(url, cell, texts, count).rows_per_s(edge_rows)

    def play(self, url: str, cell: Cell, texts: Sequence[str], count: int) -> Played:
        rows = draw(self._asked(cell), texts, count, self.rng)
        return saturate(url, rows, self.settings.in_flight, _model(cell))

    def _asked(self, cell: Cell) -> list[str]:
        scheme, tenants = cell
        return [f"{scheme.removesuffix('_cold')}{number}/task" for number in range(tenants)]

    def _is_slow(self, cell: Cell) -> bool:
        """Whether models are swapped."""
        return cell[0] in _WHOLE and cell[1] > self.settings.resident

    @property
    def hplms(self) -> list[str]:
        return [f"hplm{number}/task" for number in range(self._tenants("hplm"))]

    def _tenants(self, scheme: str) -> int:
        return max((tenants for name, tenants in self.settings.cells if name == scheme), default=0)

    def _models(self, scheme: str) -> Path:
        return self.base.home.path / "whole_models" / scheme

    @property
    def serving(self) -> Serving:
        upper = {"dtype": self.settings.dtype, "slots": str(self.settings.slots + 1)}
        return Serving(upper=upper, prepare=self._add_whole_models)

    def _add_whole_models(self, repository: Path) -> None:
        settings = self.settings
        for scheme in _WHOLE:
            is_half = scheme == _HALF_SCHEME
            parameters = {
                "home": "..",
                "root": "half" if is_half else "whole",
                "models": str(self._models(scheme.removesuffix("_cold")).absolute()),
                # Half a model takes half the memory, so twice as many stay.
                "resident": str(settings.resident * (2 if is_half else 1)),
                "cold": "true" if scheme.endswith("_cold") else "false",
                "quantised": "true" if settings.dtype == "int8" else "false",
            }
            render_whole_models(repository / scheme, parameters)


def _model(cell: Cell) -> str:
    """The Triton model that serves a scheme."""
    return cell[0] if cell[0] in _WHOLE else "hplm"


def measure(schemes: Schemes) -> dict[Cell, list[float]]:
    texts = schemes.build()
    taken: dict[Cell, list[float]] = {cell: [] for cell in schemes.settings.cells}
    with served(schemes.base.home, schemes.serving) as server:
        # A version's file is checked when it is first asked for, which a server does once in its life.
        first_rows = [(hplm, texts[0].split()[0]) for hplm in schemes.hplms]
        saturate(server.grpc_url, first_rows, schemes.settings.in_flight)
        for cell in schemes.settings.cells:  # nothing is in memory yet
            schemes.play(server.grpc_url, cell, texts, _WARM_ROWS)
        for _ in one_by_one(range(schemes.settings.repeats), "throughput", "repeats"):
            # In an order of its own each time, so that no scheme always follows the same other one.
            for index in schemes.rng.permutation(len(schemes.settings.cells)):
                cell = schemes.settings.cells[index]
                taken[cell].append(schemes.rows_per_s(server.grpc_url, cell, texts))
    return taken


def figures(taken: Mapping[Cell, Sequence[float]]) -> dict[str, float]:
    """Return the medians of the ratios within a repeat, of the cells that were measured."""
    ratios: dict[str, tuple[Cell, Cell]] = {
        "hplm_over_dedicated_16": (("hplm", 16), ("dedicated", 16)),
        "hplm_over_dedicated_1000": (("hplm", 1_000), ("dedicated", 1_000)),
        "hplm_over_dedicated_1000_cold": (("hplm", 1_000), ("dedicated_cold", 1_000)),
        "flat_10000_over_1": (("hplm", 10_000), ("hplm", 1)),
        "hplm_over_plot_16": (("hplm", 16), ("plot", 16)),
        "hplm_over_adapters_16": (("hplm", 16), ("adapters", 16)),
        "hplm_over_shared_16": (("hplm", 16), ("shared", 16)),
    }
    return {
        name: median(a / b for a, b in zip(taken[one], taken[other], strict=True))
        for name, (one, other) in ratios.items()
        if one in taken and other in taken
    }


def _in_int8(settings: Settings) -> Settings:
    """Quantise the shared layers, and the models of 16 tenants; files of other models are not in int8."""
    cells = (cell for cell in settings.cells if cell[0] == "hplm" or cell == ("dedicated", settings.resident))
    return replace(settings, dtype="int8", cells=tuple(cells))


def add_options(options: ArgumentParser) -> None:
    options.add_argument("--int8", action="store_true", help="hPLMs, and the models of 16 tenants, in int8")


@bench(
    "throughput",
    quick_s=QUICK_LOADS_S,
    bars={
        "hplm_over_dedicated_16": at_least(2.3),
        "hplm_over_dedicated_1000": at_least(5),
        "flat_10000_over_1": at_least(0.95),
    },
    add_options=add_options,
)
def throughput(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    if options.int8:
        if missing := missing_for("int8", torch.device("cpu")):
            raise InvalidArgumentError(missing)
        settings = _in_int8(settings)
    with base_home(options.seed) as base:
        taken = measure(Schemes(base, settings, BERT_BASE, np.random.default_rng(options.seed)))
    rows = [
        {
            "scheme": scheme,
            "tenants": tenants,
            "rows per s": median(rates),
            "of 1 hPLM": median(rates) / median(taken["hplm", 1]),
        }
        for (scheme, tenants), rates in taken.items()
    ]
    described = {name: value for name, value in asdict(settings).items() if name != "cells"}
    return Result(described, figures(taken), rows)


if __name__ == "__main__":
    throughput.main()
