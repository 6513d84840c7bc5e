"""Who forms the better batches: the engine, Triton alone, or Triton with the deadline batcher?

Three servers on one home, asked by turns: open-loop Poisson arrivals with deadlines at shares of the capacity, which is
what the engine answers when it is kept full. Lengths, tenants and deadlines are drawn anew for each load and repeat,
and the same for all three. The plugin's cost model is measured as `hplm profile` does it, just before.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from backends.deadline_batcher import FILE_NAME
from backends.errors import HplmError
from backends.home import Home
from backends.root.geometry import RootGeometry
from backends.scheduling.cost_model import CostModel
from bench.kit.idle import wait_until_idle
from bench.kit.open_loop import Planned, Played, Sent, play
from bench.kit.profiled import profiled
from bench.kit.progress import one_by_one
from bench.kit.report import Report, parser
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving
from bench.kit.synthetic_home import BERT_BASE, SMALL, BaseHome, Family, Words
from builder.plugin import build_plugin
from builder.serving import TritonServer
from workload.arrivals import PoissonArrivals

_ROOT = "base"
_ENGINE, _TRITON, _PLUGIN = "engine", "triton", "plugin"
Cell = tuple[float, str]
"""A load and a mode."""


@dataclass(frozen=True)
class Settings:
    geometry: str
    duration_batches: int
    longest_s: float
    repeats: int
    capacity_rows: int
    profiled_batches: int
    loads: tuple[float, ...] = (0.7, 1.0, 1.5)
    deadline_batches: tuple[float, float] = (5.0, 20.0)
    lengths: tuple[int, int] = (3, 100)
    length_mean: float = 20.0
    length_deviation: float = 20.0
    batch: int = 64
    max_tokens: int = 2048
    tenants: int = 32
    texts: int = 512
    dtype: str = "bf16"


FULL = Settings(
    "BERT-base, 6 of 12 x 768 above PLOT",
    duration_batches=100,
    longest_s=60.0,
    repeats=3,
    capacity_rows=2_048,
    profiled_batches=80,
)
QUICK = Settings(
    "small, 6 of 12 x 256 above PLOT",
    duration_batches=30,
    longest_s=2.0,
    repeats=1,
    capacity_rows=768,
    profiled_batches=40,
)


def upper_parameters(settings: Settings) -> dict[str, str]:
    return {"dtype": settings.dtype, "max_tokens": str(settings.max_tokens), "max_rows": str(settings.batch)}


@contextmanager
def all_served(
    home: Home, upper: Mapping[str, str], plugin: Path, cost: CostModel
) -> Iterator[dict[str, TritonServer]]:
    """The modes' servers, started side by side."""
    servings = {
        _ENGINE: Serving(_ENGINE, upper=upper),
        _TRITON: Serving(_TRITON, upper=upper, mode="triton"),
        _PLUGIN: Serving(_PLUGIN, upper=upper, mode="triton", plugin=plugin, cost_model=cost),
    }
    with ExitStack() as stack:
        servers = {mode: TritonServer(serving.config(home)) for mode, serving in servings.items()}
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        for server in servers.values():
            server.wait_ready()
        yield servers


def texts_of(settings: Settings, words: Words, rng: np.random.Generator) -> list[str]:
    shortest, longest = settings.lengths
    drawn = rng.normal(settings.length_mean, settings.length_deviation, size=settings.texts)
    return [words.text(rng, int(length)) for length in np.clip(np.rint(drawn), shortest, longest)]


@dataclass(frozen=True)
class Run:
    """One load on one server; what is answered late, as the client sees it, is not in time."""

    planned: Sequence[Planned]
    played: Played

    @property
    def attainment(self) -> float:
        pairs = zip(self.planned, self.played.sent, strict=True)
        return sum(_is_in_time(one, sent) for one, sent in pairs) / len(self.planned)

    @property
    def refused(self) -> float:
        return 1.0 - self.played.attainment

    @property
    def late(self) -> float:
        return self.played.attainment - self.attainment

    def percentile_ms(self, percent: float) -> float:
        """Of those that were answered."""
        latencies = [sent.latency_s for sent in self.played.sent if sent.error is None]
        return 1000 * float(np.percentile(latencies, percent)) if latencies else 0.0


def _is_in_time(planned: Planned, sent: Sent) -> bool:
    return sent.error is None and 1000 * sent.latency_s <= planned.deadline_ms


def arrivals_of(
    load: float, batch_s: float, hplms: Sequence[str], texts: Sequence[str], settings: Settings, seed: int
) -> list[Planned]:
    rng = np.random.default_rng(seed)
    duration_s = min(settings.duration_batches * batch_s, settings.longest_s)
    times = PoissonArrivals(load * settings.batch / batch_s).times_s(duration_s, rng).tolist()
    least, most = settings.deadline_batches
    deadlines_ms = np.ceil(1000 * batch_s * rng.uniform(least, most, size=len(times)))
    rows = draw(hplms, texts, len(times), rng)
    return [
        Planned(at_s, hplm, text, int(deadline_ms))
        for at_s, (hplm, text), deadline_ms in zip(times, rows, deadlines_ms, strict=True)
    ]


def measure(
    servers: Mapping[str, TritonServer], hplms: Sequence[str], texts: Sequence[str], settings: Settings, seed: int
) -> tuple[float, dict[Cell, list[Run]]]:
    """The capacity in rows per second, and what became of each load in each mode."""
    rng = np.random.default_rng(seed)
    for server in servers.values():  # nothing is in memory yet
        saturate(server.grpc_url, draw(hplms, texts, 2 * settings.batch, rng), settings.batch, settings.batch // 2)
    rows = draw(hplms, texts, settings.capacity_rows, rng)
    capacity_per_s = saturate(servers[_ENGINE].grpc_url, rows, 2 * settings.batch, settings.batch).rows_per_s
    found: dict[Cell, list[Run]] = defaultdict(list)
    modes = list(servers)
    loads = settings.repeats * settings.loads
    for number, load in enumerate(one_by_one(loads, "modes", "loads")):
        batch_s = settings.batch / capacity_per_s
        arrivals = arrivals_of(load, batch_s, hplms, texts, settings, seed + 1 + number)
        turn = sum(divmod(number, len(settings.loads))) % len(modes)
        for mode in (*modes[turn:], *modes[:turn]):
            found[load, mode].append(Run(arrivals, play(servers[mode].grpc_url, arrivals)))
            wait_until_idle(servers[mode])
    return capacity_per_s, found


def table(found: Mapping[Cell, Sequence[Run]]) -> list[dict[str, Any]]:
    return [
        {
            "load": load,
            "mode": mode,
            "requests": sum(len(one.planned) for one in runs),
            "in time": median(one.attainment for one in runs),
            "refused": median(one.refused for one in runs),
            "answered late": median(one.late for one in runs),
            "p50 ms": median(one.percentile_ms(50) for one in runs),
            "p99 ms": median(one.percentile_ms(99) for one in runs),
            "client cores": median(one.played.client_cores for one in runs),
            "client lag p99 ms": max(one.played.lag_p99_ms for one in runs),
        }
        for (load, mode), runs in sorted(found.items())
    ]


def figures(capacity_per_s: float, found: Mapping[Cell, Sequence[Run]]) -> dict[str, float]:
    """Ratios are of the same requests, repeat by repeat."""
    values: dict[str, float] = {"capacity_rows_per_s": capacity_per_s}
    for load, mode in sorted(found):
        suffix = f"{mode}_{load:g}x".replace(".", "_")
        runs, engine = found[load, mode], found[load, _ENGINE]
        values[f"attainment_{suffix}"] = median(one.attainment for one in runs)
        values[f"p99_ms_{suffix}"] = median(one.percentile_ms(99) for one in runs)
        if mode != _ENGINE:
            values[f"attainment_over_engine_{suffix}"] = median(
                _ratio(one.attainment, other.attainment) for one, other in zip(runs, engine, strict=True)
            )
            values[f"p99_over_engine_{suffix}"] = median(
                _ratio(one.percentile_ms(99), other.percentile_ms(99)) for one, other in zip(runs, engine, strict=True)
            )
    return values


def _ratio(one: float, other: float) -> float:
    """Of two shares or times; where the engine has come to nothing, of nearly nothing."""
    return one / max(other, 1e-3)


def main() -> None:
    arguments = parser("modes", "Who forms the better batches: the engine, or Triton with and without our plugin?")
    options = arguments.parse_args()
    settings = QUICK if options.quick else FULL
    geometry: RootGeometry = SMALL if options.quick else BERT_BASE
    words, rng = Words(geometry.vocab_size), np.random.default_rng(options.seed)
    texts = texts_of(settings, words, rng)
    with tempfile.TemporaryDirectory(prefix="bench_modes_") as folder:
        base = BaseHome(Path(folder) / "home", options.seed)
        base.add_root(_ROOT, geometry, texts)
        hplms = base.add_hplms(Family(_ROOT, "tenant", settings.tenants))
        plugin = Path(folder) / FILE_NAME
        build_plugin(plugin)
        upper = upper_parameters(settings)
        cost = profiled(base.home, _ROOT, upper, settings.profiled_batches)
        with all_served(base.home, upper, plugin, cost) as servers:
            capacity_per_s, found = measure(servers, hplms, texts, settings, options.seed)
    described = {name: value for name, value in asdict(settings).items() if not isinstance(value, tuple)}
    described |= cost.to_json()
    report = Report("modes", described, options.seed, figures(capacity_per_s, found), table(found))
    report.publish(options.json)


if __name__ == "__main__":
    try:
        main()
    except HplmError as error:
        sys.exit(f"bench.modes: {error}")
