"""Which policy answers what is worth most in time, when more is requested than can be answered?

The workloads of the paper TCB: lengths of 3 to 100 tokens around 20, narrow and wide, Poisson arrivals at multiples of
the capacity, deadlines in 5 to 20 times what a full batch takes. One real server for each policy, all on one home and
with the same admission, asked by turns with the very same requests, open-loop. The capacity is what the server for
first come, first served answers when it is kept full, measured in every run. Beside them Triton's own queue with
priorities and timeouts (`bench/kit/triton_queue.py`). Every value of a cell is the median over the runs.

A request answered before its planned deadline is worth 1 / its tokens. Admitted is a request that was sent and not
rejected before its deadline (`bench/kit/fates.py`). Utility and goodput are for each second of the load, and count what
is answered after its end too, by the same requests for all policies. So they may exceed the capacity, which only what
is answered on time during the load is compared with ("within the load").

All of it takes 100 minutes. Each load is kept in a file of `--trials`, and the same command goes on with the others.

`--quick` takes a root that is 512 wide and batches of 32: deadlines are multiples of what a batch takes, so with a
small model and short batches the time of the clients and of the lower half would decide instead of the policies.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from backends.root.geometry import RootGeometry
from backends.scheduling.settings import PolicyName
from bench.kit.deadlines_picture import draw_deadlines
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.fates import Fate, Fates
from bench.kit.idle import wait_until_idle
from bench.kit.overload import NARROW, WIDE, Engine, OverloadHome, overload_home
from bench.kit.progress import one_by_one
from bench.kit.report import machine
from bench.kit.served import Serving, all_served
from bench.kit.server_metrics import rejected_by_lower
from bench.kit.synthetic_home import BERT_BASE, MIDDLE
from bench.kit.trials import Trials
from bench.kit.triton_client import open_triton
from bench.kit.triton_queue import queue_options, use_queue_policy
from builder.serving import TritonServer
from loadtest.in_process import play
from loadtest.schedule import Schedule
from loadtest.sender import Target, open_sdk

_EDITION = 2
"""Of the kept trials: one more with every change of what they hold or of what is served."""
_TRITON = "triton's queue"
_open_queue = partial(open_triton, options=queue_options)
_MIXES = {"wide": WIDE, "narrow": NARROW}
Cell = tuple[str, float, str]
"""Length mix, load, and policy."""


@dataclass(frozen=True)
class Settings:
    geometry: str
    loads: Mapping[str, tuple[float, ...]]
    """Loads of each length mix, in multiples of the capacity."""
    runs: int
    duration_batches: int
    profiled_batches: int
    engine: Engine = field(default_factory=Engine)
    policies: tuple[str, ...] = tuple(PolicyName)
    longest_s: float = 45.0
    capacity_batches: int = 24
    tenants: int = 32


_LOADS = (0.5, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0)
FULL = Settings(
    geometry="BERT-base, 6 of 12 x 768 above PLOT",
    loads={WIDE: _LOADS, NARROW: _LOADS},
    runs=3,
    duration_batches=36,
    profiled_batches=160,
)
QUICK = Settings(
    geometry="middle, 6 of 12 x 512 above PLOT",
    loads={WIDE: (0.5, 1.0, 1.2, 2.0, 3.0), NARROW: (0.5, 1.0, 2.0)},
    runs=1,
    duration_batches=24,
    profiled_batches=40,
    engine=Engine(batch=32, max_tokens=1024),
)


@dataclass(frozen=True)
class Run:
    """One load on one server.

    Attributes:
        within_per_s: What is answered on time until the last request of the load is due to be sent.
        rejected: Share of all that were planned that was rejected, whenever.
        fates: Number of requests by fate.
    """

    requests: int
    utility_per_s: float
    on_time: float
    goodput_per_s: float
    within_per_s: float
    admitted: float
    admitted_on_time: float
    rejected: float
    fates: Mapping[str, int]
    rejected_by_lower: int
    p99_ms: float
    clients_share_of_cpu: float
    sent_late_p99_ms: float

    @staticmethod
    def of(duration_s: float, fates: Fates, rejected_by_lower: int) -> Run:
        played, on_time = fates.played, fates.are(Fate.ON_TIME)
        return Run(
            requests=len(fates.each),
            utility_per_s=float((1 / played.requests.tokens[on_time]).sum()) / duration_s,
            on_time=played.attainment,
            goodput_per_s=fates.count(Fate.ON_TIME) / duration_s,
            within_per_s=int((on_time & (played.requests.done_s <= duration_s)).sum()) / duration_s,
            admitted=fates.admitted / len(fates.each),
            admitted_on_time=fates.admitted_on_time,
            rejected=fates.share(Fate.REJECTED, Fate.EXPIRED),
            fates={str(fate): fates.count(fate) for fate in Fate},
            rejected_by_lower=rejected_by_lower,
            p99_ms=played.latency_ms(99),
            clients_share_of_cpu=played.client_cores / (os.cpu_count() or 1),
            sent_late_p99_ms=played.lag_p99_ms,
        )

    def row(self) -> dict[str, float]:
        return {
            "requests": self.requests,
            "utility per s": self.utility_per_s,
            "on time": self.on_time,
            "goodput": self.goodput_per_s,
            "within the load": self.within_per_s,
            "admitted": self.admitted,
            "admitted on time": self.admitted_on_time,
            **{str(fate): self.fates[fate] for fate in Fate if fate != Fate.ON_TIME},
            "rejected by hplm_lower": self.rejected_by_lower,
            "p99 ms": self.p99_ms,
            "clients' share of CPU": self.clients_share_of_cpu,
            "sent late p99 ms": self.sent_late_p99_ms,
        }


Runs = Mapping[Cell, Sequence[Run]]


class Deadlines:
    """The servers of one home, and what they are asked."""

    def __init__(
        self, home: OverloadHome, servers: Mapping[str, TritonServer], settings: Settings, seed: int, trials: Trials
    ) -> None:
        self._home, self._servers, self._settings = home, servers, settings
        self._seed, self._trials = seed, trials

    def measure(self) -> tuple[dict[str, float], dict[Cell, list[Run]]]:
        """Capacities by length mix, and what became of each load."""
        for server in self._servers.values():
            self._home.warm(server, np.random.default_rng(self._seed))
        capacities: dict[str, list[float]] = {mix: [] for mix in self._settings.loads}
        results: dict[Cell, list[Run]] = {}
        for run, mix in product(range(self._settings.runs), self._settings.loads):
            capacity = self._capacity(mix, run)
            capacities[mix].append(capacity)
            loads = self._settings.loads[mix]
            for turn, load in enumerate(one_by_one(loads, "deadlines", f"run {run + 1}, {mix}")):
                for name, played in self._run(mix, load, capacity, run, turn).items():
                    results.setdefault((mix, load, name), []).append(played)
        return {mix: median(of_mix) for mix, of_mix in capacities.items()}, results

    def _capacity(self, mix: str, run: int) -> float:
        """Return the rows a second of the first server, kept full."""
        trial = _trial(run, mix, "capacity")
        if (kept := self._trials.find(trial)) is not None:
            return float(kept[0]["rows_per_s"])
        server, count = next(iter(self._servers.values())), self._settings.capacity_batches
        capacity = self._home.capacity_per_s(server, mix, count, self._rng(trial))
        self._trials.keep(trial, [{"rows_per_s": capacity}])
        return capacity

    def _run(self, mix: str, load: float, capacity: float, run: int, turn: int) -> dict[str, Run]:
        """The same requests to all servers, each time another one first."""
        trial = _trial(run, mix, f"{load:g}")
        if (kept := self._trials.find(trial)) is not None:
            return {row.pop("name"): Run(**row) for row in kept}
        settings, names = self._settings, list(self._servers)
        duration_s = min(settings.duration_batches * settings.engine.batch / capacity, settings.longest_s)
        schedule = Schedule.of(self._home.plan(mix, load * capacity, capacity, duration_s, self._rng(trial)))
        first = (turn + run) % len(names)
        played = {name: self._play(name, schedule, duration_s) for name in (*names[first:], *names[:first])}
        self._trials.keep(trial, [{"name": name, **asdict(of_server)} for name, of_server in played.items()])
        return played

    def _rng(self, trial: str) -> np.random.Generator:
        """Return the generator of a trial, whether or not those before it are measured anew."""
        return np.random.default_rng([self._seed, *trial.encode()])

    def _play(self, name: str, schedule: Schedule, duration_s: float) -> Run:
        server, open_ask = self._servers[name], _open_queue if name == _TRITON else open_sdk
        before = rejected_by_lower(server)
        fates = Fates(play(Target(server.grpc_url), schedule, open_ask=open_ask))
        if fates.count(Fate.FAILED):  # requests that a client has given up may still be computed
            wait_until_idle(server)
        return Run.of(duration_s, fates, rejected_by_lower(server) - before)


def _trial(run: int, mix: str, what: str) -> str:
    """Return the name of what is measured of a run and a length mix."""
    return f"run-{run}-{mix.split()[0]}-{what}"


def servings(home: OverloadHome, settings: Settings) -> dict[str, Serving]:
    upper = settings.engine.parameters
    by_policy = {name: Serving(f"by_{name}", upper={**upper, "policy": name}) for name in settings.policies}
    return {**by_policy, _TRITON: Serving("by_triton", upper=upper, mode="triton", prepare=use_queue_policy)}


def measured(
    settings: Settings, geometry: RootGeometry, seed: int, trials: Trials
) -> tuple[dict[str, float], dict[Cell, list[Run]]]:
    with (
        overload_home(geometry, settings.engine, settings.tenants, settings.profiled_batches, seed) as home,
        all_served(home.home, servings(home, settings)) as servers,
    ):
        return Deadlines(home, servers, settings, seed, trials).measure()


def table(results: Runs) -> list[dict[str, Any]]:
    return [
        {"lengths": mix, "load": load, "policy": name, **_medians([run.row() for run in runs])}
        for (mix, load, name), runs in sorted(results.items())
    ]


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {column: median(row[column] for row in rows) for column in rows[0]}


def figures(capacities: Mapping[str, float], results: Runs) -> dict[str, float]:
    """On the wide lengths, unless a figure is over both mixes; left out where its cells were not measured."""
    ours = {cell: runs for cell, runs in results.items() if cell[2] != _TRITON}
    every_run = [run for runs in ours.values() for run in runs]
    of_ours = {
        "rejected_half_load_max": _most(median(run.rejected for run in runs) for runs in _at(ours, 0.5)),
        "admitted_on_time_2x": _least(median(run.admitted_on_time for run in runs) for runs in _at(ours, 2.0)),
        **_over_others(results),
        **_over_best(ours),
        "late_unrejected": sum(run.fates[Fate.LATE] for run in every_run),
        "late_on_the_way": sum(run.fates[Fate.OVERTAKEN] for run in every_run),
        "failed": sum(run.fates[Fate.FAILED] for run in every_run),
        "requests": sum(run.requests for run in every_run),
        **_collapses(capacities, results),
        **{f"capacity_rows_per_s_{mix.split()[0]}": capacity for mix, capacity in capacities.items()},
    }
    return {name: value for name, value in of_ours.items() if value is not None}


def _over_others(results: Runs) -> dict[str, float | None]:
    names = {"fcfs": PolicyName.FCFS, "edf": PolicyName.EDF, "sjf": PolicyName.SJF, "triton": _TRITON}
    das = _utility(results, WIDE, 2.0, PolicyName.DAS)
    others = {f"das_over_{word}_2x": _utility(results, WIDE, 2.0, name) for word, name in names.items()}
    return {figure: _ratio(das, other) for figure, other in others.items()}


def _over_best(ours: Runs) -> dict[str, float | None]:
    """DAS against the best policy, itself included, at each load from the capacity on."""
    ratios = []
    for mix, load in sorted({(mix, load) for mix, load, _ in ours if load >= 1.0}):
        utilities = [_utility(ours, mix, load, name) or 0.0 for _, _, name in _cells(ours, mix, load)]
        ratio = _ratio(_utility(ours, mix, load, PolicyName.DAS), max(utilities))
        if ratio is not None:
            ratios.append(ratio)
    return {
        "das_over_best_mean": geometric_mean(ratios) if ratios and min(ratios) > 0 else None,
        "das_over_best_min": _least(ratios),
    }


def _collapses(capacities: Mapping[str, float], results: Runs) -> dict[str, float | None]:
    """What is answered on time within a load of three times the capacity over that at 1.2, and over the capacity."""
    names = list(dict.fromkeys(name for _, _, name in results))
    at_3x = {name: _within(results, 3.0, name) for name in names}
    kept = {name: _ratio(at_3x[name], _within(results, 1.2, name)) for name in names}
    of_capacity = {name: _ratio(at_3x[name], capacities.get(WIDE)) for name in names}
    share_3x = [run.clients_share_of_cpu for run in results.get((WIDE, 3.0, PolicyName.DAS), ())]
    return {
        "goodput_3x_over_1_2x": kept.get(PolicyName.DAS),
        "goodput_3x_over_1_2x_least": _least_of_ours(kept),
        "goodput_3x_over_capacity_least": _least_of_ours(of_capacity),
        "triton_goodput_3x_over_1_2x": kept.get(_TRITON),
        "clients_share_of_cpu_3x": median(share_3x) if share_3x else None,
    }


def _least_of_ours(by_policy: Mapping[str, float | None]) -> float | None:
    return _least(value for name, value in by_policy.items() if name != _TRITON and value is not None)


def _at(results: Runs, load: float) -> list[Sequence[Run]]:
    return [runs for cell, runs in results.items() if cell[1] == load]


def _cells(results: Runs, mix: str, load: float) -> list[Cell]:
    return [cell for cell in results if cell[:2] == (mix, load)]


def _utility(results: Runs, mix: str, load: float, name: str) -> float | None:
    runs = results.get((mix, load, name))
    return median(run.utility_per_s for run in runs) if runs else None


def _within(results: Runs, load: float, name: str) -> float | None:
    runs = results.get((WIDE, load, name))
    return median(run.within_per_s for run in runs) if runs else None


def _ratio(one: float | None, other: float | None) -> float | None:
    """Divide; by nearly nothing where the other has come to nothing."""
    return None if one is None or other is None else one / max(other, 1e-3)


def _least(values: Iterable[float]) -> float | None:
    return min(values, default=None)


def _most(values: Iterable[float]) -> float | None:
    return max(values, default=None)


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--runs", type=_positive, help="runs of each cell (3, or 1 with --quick)")
    arguments.add_argument("--batches", type=_positive, help="how many batches' time each load lasts (36, or 24)")
    arguments.add_argument("--policies", nargs="+", choices=list(PolicyName), help="only these")
    arguments.add_argument("--mixes", nargs="+", choices=list(_MIXES), help="only these lengths")
    arguments.add_argument("--loads", nargs="+", type=float, help="these multiples of the capacity")
    kept = "keep what was measured of each load there; the same command goes on with the others"
    arguments.add_argument("--trials", type=Path, metavar="FOLDER", help=kept)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def chosen(options: Namespace) -> Settings:
    settings = QUICK if options.quick else FULL
    mixes = [_MIXES[word] for word in options.mixes or _MIXES]
    return replace(
        settings,
        loads={mix: tuple(options.loads or settings.loads[mix]) for mix in mixes},
        runs=options.runs or settings.runs,
        duration_batches=options.batches or settings.duration_batches,
        policies=tuple(options.policies or settings.policies),
    )


@bench(
    "deadlines",
    quick_s=QUICK_LOADS_S,
    bars={
        "rejected_half_load_max": at_most(0.002),
        "admitted_on_time_2x": at_least(0.99),
        "das_over_fcfs_2x": at_least(1.3),
        "das_over_edf_2x": at_least(1.3),
        "das_over_best_mean": at_least(0.98),
        "das_over_best_min": at_least(0.90),
        "late_unrejected": at_most(0),
        "goodput_3x_over_1_2x_least": at_least(0.9),
        "goodput_3x_over_capacity_least": at_least(0.8),
        "das_over_triton_2x": at_least(1.0),
    },
    add_options=add_options,
)
def deadlines(options: Namespace) -> Result:
    settings = chosen(options)
    depends_on = {"edition": _EDITION, "seed": options.seed, "machine": machine()}
    trials = Trials(options.trials, {**asdict(settings), **depends_on})
    capacities, results = measured(settings, MIDDLE if options.quick else BERT_BASE, options.seed, trials)
    rows = table(results)
    if options.json is not None:
        draw_deadlines(rows, options.json.with_suffix(".svg"))
    return Result(asdict(settings), figures(capacities, results), rows)


if __name__ == "__main__":
    deadlines.main()
