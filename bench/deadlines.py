"""Which policy answers what is worth most in time, when more is asked than can be answered?

The workloads of the paper TCB: lengths of 3 to 100 tokens around 20, narrow (variance 20) and wide (standard deviation
20), Poisson arrivals at multiples of the capacity, deadlines in 5 to 20 times what a full batch takes. One real server
for each policy, all on one home and with the same admission, asked by turns with the very same requests, open-loop: no
answer delays another request. The capacity is what the server for first come, first served answers when it is kept
full. Beside them Triton's own queue with priorities and timeouts (`bench/kit/triton_queue.py`).

A request answered in time is worth 1 / its tokens. In time is what the client has before the deadline, counted from
when it sent the request; admitted is what was not refused on arrival.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from backends.engine.settings import EngineSettings
from backends.errors import HplmError
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.scheduling.settings import PolicyName
from bench.kit.deadlines_picture import draw_deadlines
from bench.kit.idle import wait_until_idle
from bench.kit.open_loop import Planned, Played, Sent, asking_hplm, play
from bench.kit.progress import one_by_one
from bench.kit.report import Report, parser
from bench.kit.saturation import Row, saturate
from bench.kit.served import Serving
from bench.kit.synthetic_home import BERT_BASE, SMALL, BaseHome, Family, Words
from bench.kit.triton_queue import asking_triton, use_queue_policy
from builder.profiling.cost_profiling import ProfileSettings, profile_root
from builder.serving import TritonServer
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths

_ROOT = "base"
_TRITON = "triton's queue"
_LATE = "the deadline pass"
"""What those are told who were admitted and could not be answered in time."""
WIDE, NARROW = "wide (sd 20)", "narrow (variance 20)"
LENGTHS = {WIDE: NormalLengths(standard_deviation=20), NARROW: NormalLengths(standard_deviation=20**0.5)}
_NAMED = WIDE, 2.0
Cell = tuple[str, float, str]
"""Width of the lengths, load, and who serves."""


@dataclass(frozen=True)
class Settings:
    loads: tuple[float, ...]
    widths: tuple[str, ...]
    policies: tuple[str, ...]
    duration_batches: int
    longest_s: float
    profiled_batches: int
    named_times_longer: int = 3
    """How many times longer than others that load lasts which most figures are about."""
    batch: int = 64
    max_tokens: int = 2048
    warm_batches: int = 12
    capacity_batches: int = 24
    deadline_batches: tuple[int, int] = (5, 20)
    tenants: int = 32
    dtype: str = "bf16"

    @property
    def upper(self) -> dict[str, str]:
        return {"dtype": self.dtype, "max_rows": str(self.batch), "max_tokens": str(self.max_tokens)}


FULL = Settings(
    loads=(0.5, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0),
    widths=(WIDE, NARROW),
    policies=tuple(PolicyName),
    duration_batches=60,
    longest_s=45.0,
    profiled_batches=160,
)
QUICK = Settings(
    loads=(1.2, 2.0, 3.0),
    widths=(WIDE,),
    policies=(PolicyName.FCFS, PolicyName.SJF, PolicyName.EDF, PolicyName.DAS),
    duration_batches=80,
    longest_s=1.8,
    profiled_batches=40,
)


@dataclass(frozen=True)
class Load:
    """The same for all who serve."""

    planned: Sequence[Planned]
    tokens: Sequence[int]
    duration_s: float


@dataclass(frozen=True)
class Run:
    """One load on one server."""

    load: Load
    played: Played

    @property
    def is_in_time(self) -> list[bool]:
        pairs = zip(self.load.planned, self.played.sent, strict=True)
        return [sent.error is None and not _is_late(planned, sent) for planned, sent in pairs]

    @property
    def utility(self) -> float:
        pairs = zip(self.load.tokens, self.is_in_time, strict=True)
        return sum(1 / tokens for tokens, in_time in pairs if in_time)

    @property
    def attainment(self) -> float:
        return sum(self.is_in_time) / len(self.load.planned)

    @property
    def goodput_per_s(self) -> float:
        return sum(self.is_in_time) / self.load.duration_s

    @property
    def admitted(self) -> int:
        return sum(one.error is None or _LATE in one.error for one in self.played.sent)

    @property
    def admitted_on_time(self) -> float:
        return sum(self.is_in_time) / self.admitted if self.admitted else 1.0

    @property
    def late_unrefused(self) -> int:
        pairs = zip(self.load.planned, self.played.sent, strict=True)
        return sum(sent.error is None and _is_late(planned, sent) for planned, sent in pairs)


def _is_late(planned: Planned, sent: Sent) -> bool:
    return 1000 * sent.taken_s > planned.deadline_ms


def main() -> None:
    arguments = parser("deadlines", "Which policy answers what is worth most in time, under overload?")
    arguments.add_argument("--batches", type=int, help="how many batches' time each load lasts (60)")
    arguments.add_argument("--only-wide", action="store_true", help="leave out the lengths of variance 20")
    options = arguments.parse_args()
    settings = QUICK if options.quick else FULL
    if options.batches is not None:
        if options.batches < 1:
            arguments.error("--batches must be 1 or more")
        settings = replace(settings, duration_batches=options.batches)
    if options.only_wide:
        settings = replace(settings, widths=(WIDE,))
    geometry = SMALL if options.quick else BERT_BASE
    with tempfile.TemporaryDirectory(prefix="bench_deadlines_") as folder:
        capacities, found = measure(Path(folder), geometry, settings, options.seed)
    rows = table(found)
    described = {name: value for name, value in asdict(settings).items() if not isinstance(value, tuple)}
    report = Report("deadlines", described, options.seed, figures(capacities, found), rows)
    report.publish(options.json)
    if options.json is not None:
        draw_deadlines(rows, options.json.with_suffix(".svg"))


def measure(
    folder: Path, geometry: RootGeometry, settings: Settings, seed: int
) -> tuple[dict[str, float], dict[Cell, Run]]:
    """Rows per second that full batches answer, for each width; and what became of each load."""
    chance = np.random.default_rng(seed)
    words = Words(geometry.vocab_size)
    lengths = LENGTHS[WIDE]
    texts = {tokens: words.text(chance, tokens) for tokens in range(lengths.shortest, lengths.longest + 1)}
    base = BaseHome(folder / "home", seed)
    base.add_root(_ROOT, geometry, list(texts.values()))
    hplms = base.add_hplms(Family(_ROOT, "tenant", settings.tenants))
    profile(base.home, settings)
    capacities: dict[str, float] = {}
    found: dict[Cell, Run] = {}
    with all_served(base.home, settings) as servers:
        for server in servers.values():  # nothing is in memory yet, and costs are as they are on this machine
            rows = drawn_rows(WIDE, settings.warm_batches, hplms, texts, settings, chance)
            saturate(server.grpc_url, rows, 3 * settings.batch, settings.batch)
        for width in settings.widths:
            rows = drawn_rows(width, settings.capacity_batches, hplms, texts, settings, chance)
            url = servers[PolicyName.FCFS].grpc_url
            capacities[width] = saturate(url, rows, 3 * settings.batch, settings.batch).rows_per_s
            for place, times in enumerate(one_by_one(settings.loads, "deadlines", width)):
                load = drawn_load(width, times, capacities[width], hplms, texts, settings, seed + 1 + place)
                found |= {(width, times, name): run for name, run in played_by_all(servers, load, place).items()}
    return capacities, found


def profile(home: Home, settings: Settings) -> None:
    """As `hplm profile` does, so that no server begins without knowing what batches take."""
    engine = EngineSettings.from_model(ModelSettings(home, settings.upper), "cpu")
    registry = Registry.open(home)
    profile_root(home, registry, _ROOT, engine, ProfileSettings(settings.profiled_batches, 1), lambda _: None)
    registry.close()


@contextmanager
def all_served(home: Home, settings: Settings) -> Iterator[dict[str, TritonServer]]:
    """Started side by side; but one of them is idle at any time."""
    configs = {
        policy: Serving(f"by_{policy}", upper={**settings.upper, "policy": policy}).config(home)
        for policy in settings.policies
    }
    configs[_TRITON] = Serving("by_triton", upper=settings.upper, mode="triton").config(home)
    use_queue_policy(configs[_TRITON].repository)
    with ExitStack() as stack:
        servers = {name: TritonServer(config) for name, config in configs.items()}
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        for server in servers.values():
            server.wait_ready()
        yield servers


def drawn_rows(
    width: str,
    batches: int,
    hplms: Sequence[str],
    texts: Mapping[int, str],
    settings: Settings,
    chance: np.random.Generator,
) -> list[Row]:
    tokens = LENGTHS[width].draw(batches * settings.batch, chance)
    return [
        (hplms[key], texts[n]) for key, n in zip(chance.integers(len(hplms), size=len(tokens)), tokens, strict=True)
    ]


def drawn_load(
    width: str,
    times: float,
    capacity_per_s: float,
    hplms: Sequence[str],
    texts: Mapping[int, str],
    settings: Settings,
    seed: int,
) -> Load:
    chance = np.random.default_rng(seed)
    batch_s = settings.batch / capacity_per_s
    times_longer = settings.named_times_longer if (width, times) == _NAMED else 1
    duration_s = min(times_longer * settings.duration_batches * batch_s, settings.longest_s)
    at_s = PoissonArrivals(times * capacity_per_s).times_s(duration_s, chance).tolist()
    tokens = LENGTHS[width].draw(len(at_s), chance).tolist()
    keys = chance.integers(len(hplms), size=len(at_s)).tolist()
    shortest_ms, longest_ms = (max(1, round(1e3 * count * batch_s)) for count in settings.deadline_batches)
    deadlines_ms = UniformDeadlines(shortest_ms, longest_ms).draw_ms(len(at_s), chance).tolist()
    columns = zip(at_s, keys, tokens, deadlines_ms, strict=True)
    planned = [Planned(at, hplms[key], texts[length], deadline_ms) for at, key, length, deadline_ms in columns]
    return Load(planned, tokens, duration_s)


def played_by_all(servers: Mapping[str, TritonServer], load: Load, turn: int) -> dict[str, Run]:
    """Each time somebody else begins; and nobody before the one ahead has nothing left to do."""
    names = list(servers)
    turn %= len(names)
    runs = {}
    for name in (*names[turn:], *names[:turn]):
        asking = asking_triton if name == _TRITON else asking_hplm
        runs[name] = Run(load, play(servers[name].grpc_url, load.planned, asking))
        wait_until_idle(servers[name])
    return runs


def table(found: Mapping[Cell, Run]) -> list[dict[str, Any]]:
    return [
        {
            "lengths": width,
            "load": load,
            "policy": name,
            "requests": len(run.load.planned),
            "utility per s": run.utility / run.load.duration_s,
            "in time": run.attainment,
            "goodput": run.goodput_per_s,
            "admitted": run.admitted / len(run.load.planned),
            "admitted in time": run.admitted_on_time,
            "late, not refused": run.late_unrefused,
            "late on the way": run.played.overtaken,
            "p99 ms": run.played.latency_ms(99),
            "clients' share of CPU": _share_of_cpu(run),
            "sent late p99 ms": run.played.lag_p99_ms,
        }
        for (width, load, name), run in sorted(found.items())
    ]


def _share_of_cpu(run: Run) -> float:
    return run.played.client_cores / (os.cpu_count() or 1)


def figures(capacities: Mapping[str, float], found: Mapping[Cell, Run]) -> dict[str, float]:
    """On the wide lengths, but for what is told of all runs."""

    def run(load: float, name: str) -> Run:
        return found[WIDE, load, name]

    das = PolicyName.DAS
    ours = {cell: one for cell, one in found.items() if cell[2] != _TRITON}
    at_2x = [one for (_, load, _), one in ours.items() if load == 2.0]
    collapses = {
        name: _ratio(one.goodput_per_s, run(1.2, name).goodput_per_s)
        for (width, load, name), one in ours.items()
        if width == WIDE and load == 3.0
    }
    return {
        "das_over_fcfs_2x": _ratio(run(2.0, das).utility, run(2.0, PolicyName.FCFS).utility),
        "das_over_edf_2x": _ratio(run(2.0, das).utility, run(2.0, PolicyName.EDF).utility),
        "das_over_sjf_2x": _ratio(run(2.0, das).utility, run(2.0, PolicyName.SJF).utility),
        "das_over_triton_2x": _ratio(run(2.0, das).utility, run(2.0, _TRITON).utility),
        "admitted_on_time_2x": run(2.0, das).admitted_on_time,
        "admitted_on_time_2x_least": min(one.admitted_on_time for one in at_2x),
        "late_unrefused": sum(one.late_unrefused for one in ours.values()),
        "late_on_the_way": sum(one.played.overtaken for one in ours.values()),
        "requests": sum(len(one.played.sent) for one in ours.values()),
        "goodput_3x_over_1_2x": collapses[das],
        "goodput_3x_over_1_2x_least": min(collapses.values()),
        "triton_goodput_3x_over_1_2x": _ratio(run(3.0, _TRITON).goodput_per_s, run(1.2, _TRITON).goodput_per_s),
        "clients_share_of_cpu_3x": run(3.0, das).played.client_cores / (os.cpu_count() or 1),
        **{f"capacity_rows_per_s_{width.split()[0]}": capacity for width, capacity in capacities.items()},
    }


def _ratio(one: float, other: float) -> float:
    """Where the other has come to nothing, of nearly nothing."""
    return one / max(other, 1e-3)


if __name__ == "__main__":
    try:
        main()
    except HplmError as error:
        sys.exit(f"bench.deadlines: {error}")
