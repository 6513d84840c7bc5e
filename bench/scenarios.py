"""How long do requests take under the loads of the HMI paper, of hPLMs and of models of each tenant's own?

burst: 250 users, one more every 0.05 s, each asks 50 times, every 1.2 s. steady: every tenant asks once in 20 s. Both
are played open-loop against the real Triton, first the hPLMs, then dedicated models: twelve layers of each
tenant's own, swapped in one process. As many of them stay in memory as fit into what the hPLM server's processes hold
together, with every tenant's adapters; what the baseline's own process takes besides is not held against it.

Response times count from when a request was to be sent. What is not answered within the timeout counts as if it had
been just then, so the ratios of means are lower bounds where the baseline does not keep up.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.root.geometry import RootGeometry
from bench.kit.entry import QUICK_LOADS_S, Result, bench
from bench.kit.footprint import Footprint
from bench.kit.saturation import draw, saturate
from bench.kit.scenarios_picture import draw_scenarios
from bench.kit.served import Serving
from bench.kit.synthetic_home import BERT_BASE, SMALL, BaseHome, Family, Words
from bench.kit.whole_models import write_whole_models
from bench.kit.whole_repository import render_whole_models
from builder.serving import ServerConfig, TritonServer
from loadtest.in_process import Played, play
from loadtest.scenarios import Burst, Content, Scenario, Steady
from loadtest.schedule import Schedule
from loadtest.sender import Target
from loadtest.texts import FileTexts
from workload.lengths import NormalLengths
from workload.tenants import UniformTenants

HPLM, DEDICATED = "hplm", "dedicated"
_HALF, _WHOLE = "half", "whole"
_LENGTHS = NormalLengths(standard_deviation=20)
Cell = tuple[str, str]
"""A scenario and a scheme."""


@dataclass(frozen=True)
class Settings:
    geometry: str
    tenants: int
    users: int
    spawn_s: float
    burst_every_s: float
    requests: int
    steady_every_s: float
    steady_s: float
    timeout_s: float
    warm_rows: int
    texts: int = 512
    distinct_files: int = 16
    dtype: str = "bf16"


FULL = Settings(
    geometry="BERT-base, 12 x 768 as 6 + 6",
    tenants=1_000,
    users=250,
    spawn_s=0.05,
    burst_every_s=1.2,
    requests=50,
    steady_every_s=20.0,
    steady_s=60.0,
    timeout_s=120.0,
    warm_rows=64,
)
QUICK = replace(
    FULL,
    geometry="small, 12 x 256 as 6 + 6",
    tenants=250,
    users=80,
    spawn_s=0.02,
    burst_every_s=0.3,
    requests=5,
    steady_every_s=2.5,
    steady_s=3.0,
    timeout_s=4.0,
    distinct_files=4,
)


@dataclass(frozen=True)
class Answered:
    """One scenario with one scheme. Shape: `response_s` [requests]."""

    response_s: NDArray[np.float64]
    answered: float
    lateness_p99_ms: float

    @classmethod
    def of(cls, played: Played, timeout_s: float) -> Answered:
        requests = played.requests
        within = np.maximum(requests.latency_s, np.where(requests.answered, 0.0, timeout_s))
        return cls(within, float(requests.answered.mean()), played.lag_p99_ms)

    @property
    def mean_s(self) -> float:
        return float(self.response_s.mean())


class Loads:
    """A home with everything that both servers read, and the loads that both are asked."""

    def __init__(self, folder: Path, geometry: RootGeometry, settings: Settings, seed: int) -> None:
        self._folder = folder
        self._geometry = geometry
        self._settings = settings
        self._rng = np.random.default_rng(seed)
        words = Words(geometry.vocab_size)
        lengths = _LENGTHS.draw(settings.texts, self._rng).tolist()
        self._texts = sorted((words.text(self._rng, length) for length in lengths), key=lambda text: text.count(" "))
        self._base = BaseHome(folder / "home", seed)
        self._base.add_root(_HALF, geometry, self._texts)
        self._hplms = self._base.add_hplms(Family(_HALF, "tenant", settings.tenants, distinct=settings.distinct_files))
        self.schedules = self._schedules(seed)

    def play_hplms(self) -> tuple[dict[str, Answered], int]:
        """Each scenario, and the bytes that a server of whole models may hold."""
        serving = Serving(upper={"dtype": self._settings.dtype, "slots": "129"})
        with TritonServer(serving.config(self._base.home)) as server:
            found = self._play_all(server, self._settings.tenants)
            return found, Footprint.of(server.pid).pss_bytes + self._unshared_bytes()

    def play_dedicated(self, budget_bytes: int) -> tuple[dict[str, Answered], int]:
        """Each scenario, and how many models stay in memory."""
        layers = self._geometry.num_lower_layers + self._geometry.num_upper_layers
        deep = replace(self._geometry, num_lower_layers=1, num_upper_layers=layers)
        # Single tokens only: what it looks up are a model's embeddings.
        self._base.add_root(_WHOLE, deep, [])
        models, home = self._folder / "models", self._base.home
        tenants = [hplm.split("/")[0] for hplm in self._hplms]
        resident = max(1, budget_bytes // write_whole_models(models, deep, tenants, self._settings.distinct_files))
        repository = self._folder / "dedicated"
        parameters = {"root": _WHOLE, "models": str(models.absolute()), "resident": str(resident)}
        render_whole_models(repository / "hplm", parameters)
        environment = {"HPLM_HOME": str(home.path)}
        with TritonServer(ServerConfig(repository=repository, environment=environment)) as server:
            return self._play_all(server, min(resident, self._settings.tenants)), resident

    def _schedules(self, seed: int) -> dict[str, Schedule]:
        settings = self._settings
        content = Content(tuple(self._hplms), FileTexts(tuple(self._texts)), _LENGTHS)
        scenarios: dict[str, Scenario] = {
            "burst": Burst(UniformTenants, settings.users, settings.spawn_s, settings.burst_every_s, settings.requests),
            "steady": Steady(settings.steady_s, settings.steady_every_s),
        }
        rng = np.random.default_rng(seed)
        return {name: scenario.schedule(content, rng) for name, scenario in scenarios.items()}

    def _play_all(self, server: TritonServer, asked_before: int) -> dict[str, Answered]:
        target = Target(server.grpc_url, "grpc", self._settings.timeout_s)
        found = {}
        for name, schedule in self.schedules.items():
            self._ask_all(server, asked_before)
            found[name] = Answered.of(play(target, schedule), self._settings.timeout_s)
        return found

    def _ask_all(self, server: TritonServer, tenants: int) -> None:
        """Ask each tenant once: memory is full, and no request of another scenario waits, before any counts."""
        texts = draw(self._hplms, self._texts, tenants, self._rng)
        rows = [(hplm, text) for hplm, (_, text) in zip(self._hplms, texts, strict=False)]
        saturate(server.grpc_url, rows, self._settings.warm_rows)

    def _unshared_bytes(self) -> int:
        """The adapters that would lie in memory too if no two tenants had the same file."""
        one = (self._base.home.bank(_HALF, self._hplms[0], 1) / "weights.safetensors").stat().st_size
        return one * (len(self._hplms) - self._settings.distinct_files)


def figures(found: Mapping[Cell, Answered], budget_bytes: int, resident: int) -> dict[str, float]:
    scenarios = list(dict.fromkeys(scenario for scenario, _ in found))
    ratios = {
        f"{scenario}_mean_ratio": found[scenario, DEDICATED].mean_s / found[scenario, HPLM].mean_s
        for scenario in scenarios
    }
    answered = {f"{scenario}_answered_{scheme}": one.answered for (scenario, scheme), one in found.items()}
    return {**ratios, **answered, "memory_mb": budget_bytes / 1e6, "dedicated_in_memory": float(resident)}


def table(found: Mapping[Cell, Answered]) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "scenario": scenario,
            "scheme": scheme,
            "requests": len(one.response_s),
            "answered": one.answered,
            "mean ms": 1e3 * one.mean_s,
            **{f"p{percent} ms": 1e3 * float(np.percentile(one.response_s, percent)) for percent in (50, 90, 99)},
            "sent late p99 ms": one.lateness_p99_ms,
        }
        for (scenario, scheme), one in found.items()
    ]


@bench(
    "scenarios",
    quick_s=QUICK_LOADS_S,
)
def scenarios(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        loads = Loads(Path(folder), BERT_BASE if settings is FULL else SMALL, settings, options.seed)
        hplms, budget_bytes = loads.play_hplms()
        dedicated, resident = loads.play_dedicated(budget_bytes)
    results = {(name, scheme): one[name] for name in hplms for scheme, one in ((HPLM, hplms), (DEDICATED, dedicated))}
    if options.json is not None:
        curves = {cell: one.response_s for cell, one in results.items()}
        draw_scenarios(curves, settings.timeout_s, options.json.with_suffix(".svg"))
    return Result(asdict(settings), figures(results, budget_bytes, resident), table(results))


if __name__ == "__main__":
    scenarios.main()
