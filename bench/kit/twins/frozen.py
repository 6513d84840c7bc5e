"""One variant: calibrated once, its costs written to a file, then predicted beside what really happens.

The calibration loads are other ones than those that are predicted. From then on the file is only read, which its
checksum shows at the end. A simulation gets the moments at which requests really left, because a client that shares the
cores falls behind. Each load is played several times, which says how far the real system is from itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import mean

import numpy as np

from backends.errors import CorruptFileError
from backends.root.geometry import RootGeometry
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.cost_profile import read_profile, write_profile
from backends.scheduling.settings import AdmissionSettings, Capacity
from bench.kit.overload import WIDE, Engine, OverloadHome, overload_home
from bench.kit.progress import one_by_one
from bench.kit.report import machine
from bench.kit.saturation import HplmText, saturate
from bench.kit.synthetic_home import ROOT
from bench.kit.twins.fitting import Host, fit_costs
from bench.kit.twins.ground import Ground, ground_of
from bench.kit.twins.loads import POISSON, Capability, Loads
from bench.kit.twins.observing import Observed, ask_alone, observe
from bench.kit.twins.variants import Variant
from builder.placement import SimulatedLoad, Simulator
from builder.placement.fleet.fleet_simulator import FleetSimulator
from builder.placement.policies import policy_named
from builder.placement.server_costs import ServerCosts
from loadtest.texts import tokens_of
from workload.traces import Trace

_PACED_ROWS = 16
_MEAN_TOKENS = 20
_FIXED_PART = 0.2
_WARM_BATCHES = 6


@dataclass(frozen=True)
class FrozenSettings:
    """Durations are in seconds, or as long as so many batches take; each load is one of the servers' capacity."""

    geometry: RootGeometry
    calibration_loads: tuple[float, ...]
    loads: tuple[float, ...]
    processes: tuple[str, ...]
    repeats: int
    duration_s: float
    least_batches: int
    max_rows: int
    profiled_batches: int
    capacity_batches: int
    paced_rows_per_s: float
    deadlines_in_batches: tuple[float, float] = (5.0, 20.0)
    tenants: int = 64
    dtype: str = "bf16"


@dataclass(frozen=True, eq=False)
class Predicted:
    """One load: what really became of it, several times, and what was predicted each time.

    Attributes:
        simulated: Attainment by the frozen costs.
        plain: The same by what full batches took before, without what serving takes; as who only profiles knows it.
    """

    process: str
    load: float
    runs: Sequence[Observed]
    simulated: Sequence[float]
    plain: Sequence[float]

    @property
    def real(self) -> float:
        return mean(run.attainment for run in self.runs)

    @property
    def points(self) -> float:
        """Return how many points more were predicted than measured."""
        return 100 * (mean(self.simulated) - self.real)

    @property
    def plain_points(self) -> float:
        return 100 * (mean(self.plain) - self.real)

    @property
    def repeat_points(self) -> float:
        """How far two real runs of the same load are apart, on average."""
        pairs = combinations([run.attainment for run in self.runs], 2)
        apart = [100 * abs(one - other) for one, other in pairs]
        return mean(apart) if apart else 0.0


@dataclass(frozen=True, eq=False)
class Frozen:
    """A variant's costs as they were frozen, and what was predicted by them."""

    variant: Variant
    capability: Capability
    costs: ServerCosts
    predicted: Sequence[Predicted]


def predict(
    variant: Variant,
    settings: FrozenSettings,
    policy: str,
    folder: Path,
    trace: Trace | None,
    seed: int,
) -> Frozen:
    """Calibrate a variant, freeze, and predict; the frozen file is `folder/costs-<variant>.json`.

    Raises:
        CorruptFileError: The file was changed meanwhile.
    """
    with _home_of(variant, settings, policy, seed) as home, ground_of(variant, home) as ground:
        capability = _capability(ground, home, variant, settings, seed)
        duration_s = max(settings.duration_s, settings.least_batches * capability.batch_ms / 1e3)
        loads = Loads(home, capability, settings.deadlines_in_batches, duration_s, trace)
        path = folder / f"costs-{variant.name}.json"
        _calibrate(ground, home, variant, loads, settings, seed).write(path)
        frozen = hashlib.sha256(path.read_bytes()).hexdigest()
        twin = _Twin(variant, ground, home, ServerCosts.read(path), capability, policy)
        cells = [(process, load) for process in settings.processes for load in settings.loads]
        predicted = [
            _predict(ground, twin, loads, process, load, settings.repeats, seed + 100 + number)
            for number, (process, load) in enumerate(one_by_one(cells, "simulator", f"predict {variant.name}"))
        ]
    if hashlib.sha256(path.read_bytes()).hexdigest() != frozen:
        raise CorruptFileError(f"{path} was changed while it was predicted by")
    return Frozen(variant, capability, twin.costs, predicted)


@contextmanager
def _home_of(variant: Variant, settings: FrozenSettings, policy: str, seed: int) -> Iterator[OverloadHome]:
    """Make a home whose root has the variant's cost model."""
    rows = _PACED_ROWS if variant.is_paced else settings.max_rows
    stages = len(variant.stages.shares)
    engine = Engine(
        rows, dtype=settings.dtype, threads=variant.threads, policy=policy, stages=None if stages == 1 else stages
    )
    with overload_home(settings.geometry, engine, settings.tenants, settings.profiled_batches, seed) as home:
        if variant.is_paced:
            home = replace(home, cost_model=_pace(rows, settings.paced_rows_per_s / variant.servers))
            folder = home.home.profile(ROOT)
            write_profile(folder, replace(read_profile(folder), model=home.cost_model))
        yield home


def _pace(rows: int, rows_per_s: float) -> CostModel:
    """Return what batches take on a device that answers so many rows a second in full batches."""
    batch_us = 1e6 * rows / rows_per_s
    return CostModel(_FIXED_PART * batch_us, 0.0, (1 - _FIXED_PART) * batch_us / (rows * _MEAN_TOKENS), 0.0, 0.0)


def _capability(
    ground: Ground, home: OverloadHome, variant: Variant, settings: FrozenSettings, seed: int
) -> Capability:
    """Keep the servers full for a while, once they are warm."""
    rng, batch = np.random.default_rng(seed), home.engine.batch
    for batches in (_WARM_BATCHES, settings.capacity_batches):
        rows = home.rows(WIDE, batches * variant.servers, rng)
        taken = saturate(ground.url, rows, in_flight=3 * batch * variant.servers)
    rows_per_s = taken.rows_per_s(batch)
    ground.wait_until_idle()
    batch_ms = 1e3 * batch * variant.servers / rows_per_s
    predicted_us = mean(home.cost_model.predict_us(shape) for shape in _full_batches(rows, batch))
    return Capability(rows_per_s, batch_ms, 1e3 * batch_ms / (variant.stages.slowest * predicted_us))


def _full_batches(rows: Sequence[HplmText], batch: int) -> Iterator[BatchShape]:
    for start in range(0, len(rows), batch):
        lengths = [tokens_of(text) for _, text in rows[start : start + batch]]
        hplms = len({hplm for hplm, _ in rows[start : start + batch]})
        yield BatchShape(len(lengths), sum(lengths), sum(length * length for length in lengths), hplms)


def _calibrate(
    ground: Ground, home: OverloadHome, variant: Variant, loads: Loads, settings: FrozenSettings, seed: int
) -> ServerCosts:
    alone = ask_alone(ground, home)
    observed = [
        observe(ground, loads.schedule(POISSON, load, seed + number))
        for number, load in enumerate(one_by_one(settings.calibration_loads, "simulator", f"calibrate {variant.name}"))
    ]
    measured = {"variant": variant.name, "loads": list(settings.calibration_loads), "machine": machine()}
    return fit_costs(
        home.cost_model,
        ground.spans_by_server(),
        observed,
        alone,
        Host(variant.most_stretch, is_shared=not variant.is_isolated, stages=variant.stages),
        home.engine.batch,
        measured | {"alone_ms": alone.took_us / 1e3},
    )


def _predict(
    ground: Ground, twin: _Twin, loads: Loads, process: str, load: float, repeats: int, seed: int
) -> Predicted:
    schedule = loads.schedule(process, load, seed)
    runs = [observe(ground, schedule) for _ in range(repeats)]
    simulated = [twin.attainment(run, seed + 1_000 * number) for number, run in enumerate(runs)]
    return Predicted(process, load, runs, simulated, [twin.plain_attainment(run) for run in runs])


class _Twin:
    """What plays the loads in virtual time; it knows the frozen file and nothing of the runs."""

    def __init__(
        self,
        variant: Variant,
        ground: Ground,
        home: OverloadHome,
        costs: ServerCosts,
        capability: Capability,
        policy: str,
    ) -> None:
        self.costs = costs
        self._names = [server.name for server in ground.servers]
        self._hplms = home.hplms
        self._policy = policy
        self._capacity = Capacity(home.engine.batch, home.engine.max_tokens)
        self._plain_model = costs.model.scaled(capability.slowness)
        self._stages = variant.stages

    def attainment(self, run: Observed, seed: int) -> float:
        """Return the share of all planned requests, those that the client could not send in time among them."""
        load = run.replayed(self._hplms, self.costs.front.reach_us)
        return self._answered(load, self.costs.model, self.costs, seed) / len(run.played.requests)

    def plain_attainment(self, run: Observed) -> float:
        return self._answered(run.replayed(self._hplms), self._plain_model, None, 0) / len(run.played.requests)

    def _answered(self, load: SimulatedLoad, model: CostModel, costs: ServerCosts | None, seed: int) -> int:
        servers = {
            name: Simulator(
                policy_named(self._policy, model.scaled(self._stages.slowest)),
                model,
                self._capacity,
                AdmissionSettings(),
                costs=costs,
                seed=seed + number,
                stages=self._stages,
            )
            for number, name in enumerate(self._names)
        }
        if len(servers) == 1:
            return int(next(iter(servers.values())).run(load).is_answered.sum())
        return int(FleetSimulator(servers, shares_host=True).run(load).together.is_answered.sum())
