"""What benches of deadlines share: a profiled home, servers side by side, their capacity, and loads drawn for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from backends.adapters.ladder import Ladder
from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.root.geometry import RootGeometry
from backends.scheduling.cost_model import CostModel
from bench.kit.profiled import profiled
from bench.kit.random_root import BOTTLENECK
from bench.kit.saturation import HplmText, saturate
from bench.kit.synthetic_home import ROOT, tenant_home
from builder.serving import TritonServer
from loadtest.schedule import Row
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths

WIDE, NARROW = "wide (sd 20)", "narrow (variance 20)"
LENGTHS = {WIDE: NormalLengths(standard_deviation=20), NARROW: NormalLengths(standard_deviation=20**0.5)}
"""The length mixes of the paper TCB: 3 to 100 tokens around 20."""
_DEADLINES_IN_BATCHES = (5, 20)
_WARM_BATCHES = 12


@dataclass(frozen=True)
class Engine:
    """What every server of a bench has in common."""

    batch: int = 64
    max_tokens: int = 2048
    dtype: str = "bf16"
    threads: int | None = None
    policy: str | None = None
    stages: int | None = None

    @property
    def parameters(self) -> dict[str, str]:
        others = {"threads": self.threads, "policy": self.policy, "stages": self.stages}
        given = {name: str(value) for name, value in others.items() if value is not None}
        return {"dtype": self.dtype, "max_rows": str(self.batch), "max_tokens": str(self.max_tokens), **given}


@dataclass(frozen=True)
class OverloadHome:
    """One root with tenants on it, its costs measured as `hplm profile` does, and a text of each length."""

    home: Home
    hplms: Sequence[str]
    texts: Mapping[int, str]
    engine: Engine
    cost_model: CostModel

    def rows(self, mix: str, batches: int, rng: np.random.Generator) -> list[HplmText]:
        tokens = LENGTHS[mix].draw(batches * self.engine.batch, rng).tolist()
        keys = rng.integers(len(self.hplms), size=len(tokens)).tolist()
        return [(self.hplms[key], self.texts[count]) for key, count in zip(keys, tokens, strict=True)]

    def warm(self, server: TritonServer, rng: np.random.Generator, batches: int = _WARM_BATCHES) -> None:
        """Load what is asked for, and let the server learn what batches take."""
        self.capacity_per_s(server, WIDE, batches, rng)

    def capacity_per_s(self, server: TritonServer, mix: str, batches: int, rng: np.random.Generator) -> float:
        """Rows per second of a server that is kept full."""
        rows, batch = self.rows(mix, batches, rng), self.engine.batch
        return saturate(server.grpc_url, rows, 3 * batch).rows_per_s(batch)

    def plan(
        self,
        mix: str,
        rate_per_s: float,
        capacity_per_s: float,
        duration_s: float,
        rng: np.random.Generator,
        hplms: Sequence[str] | None = None,
    ) -> list[Row]:
        """Poisson arrivals, tenants drawn uniformly, deadlines in 5 to 20 times what a full batch takes."""
        hplms = hplms or self.hplms
        at_s = PoissonArrivals(rate_per_s).times_s(duration_s, rng).tolist()
        tokens = LENGTHS[mix].draw(len(at_s), rng).tolist()
        keys = rng.integers(len(hplms), size=len(at_s)).tolist()
        batch_ms = 1e3 * self.engine.batch / capacity_per_s
        shortest_ms, longest_ms = (max(1, round(count * batch_ms)) for count in _DEADLINES_IN_BATCHES)
        deadlines_ms = UniformDeadlines(shortest_ms, longest_ms).draw_ms(len(at_s), rng).tolist()
        columns = zip(at_s, keys, tokens, deadlines_ms, strict=True)
        return [Row(at, hplms[key], self.texts[count], deadline_ms) for at, key, count, deadline_ms in columns]


@contextmanager
def overload_home(
    geometry: RootGeometry,
    engine: Engine,
    tenants: int,
    profiled_batches: int,
    seed: int,
    recipe: AdapterRecipe = BOTTLENECK,
    ladder: Ladder | None = None,
) -> Iterator[OverloadHome]:
    lengths = range(LENGTHS[WIDE].shortest, LENGTHS[WIDE].longest + 1)
    with tenant_home(geometry, tenants, lengths, seed, 1, recipe, ladder) as made:
        texts = {tokens: text for tokens, (text,) in made.texts.items()}
        cost_model = profiled(made.home, ROOT, engine.parameters, profiled_batches)
        yield OverloadHome(made.home, made.hplms, texts, engine, cost_model)
