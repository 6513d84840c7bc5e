"""One load against the real server and against its simulation, and how far apart the two come out.

The cost model is the root's profile, measured here, times one factor: what the server's batches took in this very run,
with the lower half and the clients on the same cores, over what the profile says. So a machine that is slower at times
is no error of the simulator. Beside it the same with what full batches took before all loads, as who plans knows it.
The delay before the queue is what a request takes on an idle server, less its batch.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from backends.root.geometry import RootGeometry
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.settings import AdmissionSettings, Capacity
from bench.kit.fates import Fate, Fates
from bench.kit.idle import wait_until_idle
from bench.kit.overload import LENGTHS, WIDE, Engine, OverloadHome, overload_home
from bench.kit.progress import one_by_one
from bench.kit.saturation import saturate
from bench.kit.served import Serving, served
from bench.kit.server_metrics import figure_of
from builder.placement import ConstantDelay, SimulatedLoad, Simulation, Simulator, Workload
from builder.placement.policies import policy_named
from builder.serving import TritonServer
from hplm_client import HplmClient
from loadtest.in_process import Played, play
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.tenants import UniformTenants

_ALONE = 20


@dataclass(frozen=True)
class TwinSettings:
    """Durations and deadlines are multiples of what a full batch takes; each load is one of the server's capacity."""

    geometry: RootGeometry
    loads: tuple[float, ...]
    duration_in_batches: float
    max_rows: int
    calibration_rows: int
    profiled_batches: int
    deadlines_in_batches: tuple[float, float]
    tenants: int = 16
    dtype: str = "bf16"


@dataclass(frozen=True)
class Calibration:
    """The server as the simulator sees it."""

    cost_model: CostModel
    delay_us: int
    rate_per_s: float
    full_batch_us: float


@dataclass(frozen=True)
class Comparison:
    """The same requests, really and virtually."""

    load: float
    played: Played
    slowdown: float
    """What batches took, over what was expected by those before all loads."""
    simulated: Simulation
    foretold: Simulation
    """With costs as they were before all loads."""

    @property
    def attainment(self) -> float:
        """The share of requests whose answers left the server in time, whatever a busy client did with them."""
        return Fates(self.played).share(Fate.ON_TIME, Fate.OVERTAKEN)

    @property
    def error_points(self) -> float:
        return self._points_from(self.simulated)

    @property
    def foretold_error_points(self) -> float:
        return self._points_from(self.foretold)

    def _points_from(self, simulation: Simulation) -> float:
        return 100 * abs(self.attainment - simulation.attainment)


def compare(settings: TwinSettings, policy: str, seed: int) -> tuple[Calibration, list[Comparison]]:
    engine = Engine(batch=settings.max_rows, dtype=settings.dtype)
    upper = {**engine.parameters, "policy": policy}
    profiled_batches = settings.profiled_batches
    with (
        overload_home(settings.geometry, engine, settings.tenants, profiled_batches, seed) as home,
        served(home.home, Serving(upper=upper)) as server,
    ):
        twin = Twin(server, home, settings, policy)
        calibration = twin.calibrated(seed)
        loads = enumerate(one_by_one(settings.loads, "simulator", "loads"))
        return calibration, [twin.compared(load, calibration, seed + number) for number, load in loads]


class Twin:
    """A running server, and what is asked of it and of its simulation."""

    def __init__(self, server: TritonServer, home: OverloadHome, settings: TwinSettings, policy: str) -> None:
        self._server = server
        self._profile = home.cost_model
        self._engine = home.engine
        self._texts = home.texts
        self._hplms = home.hplms
        self._settings = settings
        self._policy = policy

    def calibrated(self, seed: int) -> Calibration:
        rng = np.random.default_rng(seed)
        max_rows = self._settings.max_rows
        tokens = LENGTHS[WIDE].draw(self._settings.calibration_rows, rng)
        keys = rng.integers(len(self._hplms), size=len(tokens))
        columns = zip(keys.tolist(), tokens.tolist(), strict=True)
        rows = [(self._hplms[key], self._texts[length]) for key, length in columns]
        url = self._server.grpc_url
        saturate(url, rows[: 2 * max_rows], in_flight=2 * max_rows)
        taken = saturate(url, rows, in_flight=3 * max_rows)
        rate_per_s = taken.rows_per_s(max_rows)
        batch_us = 1e6 * max_rows / rate_per_s
        batches = [slice(start, start + max_rows) for start in range(0, len(rows), max_rows)]
        profiled_us = statistics.mean(self._profile.predict_us(_shape(tokens[at], keys[at])) for at in batches)
        model = self._profile.scaled(batch_us / profiled_us)
        wait_until_idle(self._server)
        return Calibration(model, self._delay_us(model), rate_per_s, batch_us)

    def compared(self, load: float, calibration: Calibration, seed: int) -> Comparison:
        drawn = self._drawn(load, calibration, seed)
        before = _BatchTime.told_by(self._server)
        played = play(Target(self._server.grpc_url), Schedule.of(self._planned(drawn)))
        wait_until_idle(self._server)
        foretold = calibration.cost_model
        as_it_was = self._profile.scaled(_BatchTime.told_by(self._server).over_profile_since(before))
        slowdown = as_it_was.per_token_us / foretold.per_token_us
        return Comparison(load, played, slowdown, self._simulated(drawn, as_it_was), self._simulated(drawn, foretold))

    def _drawn(self, load: float, calibration: Calibration, seed: int) -> SimulatedLoad:
        batch_ms = calibration.full_batch_us / 1e3
        shortest, longest = (max(1, round(times * batch_ms)) for times in self._settings.deadlines_in_batches)
        workload = Workload(
            PoissonArrivals(load * calibration.rate_per_s),
            LENGTHS[WIDE],
            UniformTenants(len(self._hplms)),
            UniformDeadlines(shortest, longest),
            ConstantDelay(calibration.delay_us),
        )
        return workload.draw(self._settings.duration_in_batches * batch_ms / 1e3, seed)

    def _planned(self, load: SimulatedLoad) -> list[Row]:
        assert load.deadlines_us is not None
        deadlines_ms = (load.deadlines_us - load.arrived_us) // 1_000
        columns = (load.arrived_us.tolist(), load.tenants.tolist(), load.tokens.tolist(), deadlines_ms.tolist())
        return [
            Row(arrived_us / 1e6, self._hplms[tenant], self._texts[tokens], deadline_ms)
            for arrived_us, tenant, tokens, deadline_ms in zip(*columns, strict=True)
        ]

    def _simulated(self, load: SimulatedLoad, model: CostModel) -> Simulation:
        capacity = Capacity(self._engine.batch, self._engine.max_tokens)
        return Simulator(policy_named(self._policy, model), model, capacity, AdmissionSettings()).run(load)

    def _delay_us(self, model: CostModel) -> int:
        tokens = 20
        alone = BatchShape(1, tokens, tokens * tokens, 1)
        with HplmClient(self._server.grpc_url) as client:
            taken_us = [
                _taken_us(client, self._hplms[number % len(self._hplms)], self._texts[tokens])
                for number in range(_ALONE)
            ]
        return max(0, round(statistics.median(taken_us) - model.predict_us(alone)))


@dataclass(frozen=True)
class _BatchTime:
    """Times of all batches until now."""

    measured_us: float
    profiled_us: float

    @classmethod
    def told_by(cls, server: TritonServer) -> _BatchTime:
        measured_us, profiled_us = (
            figure_of(server, f'hplm_batch_us_total{{time="{kind}"}}') for kind in ("measured", "uncorrected")
        )
        return cls(measured_us, profiled_us)

    def over_profile_since(self, before: _BatchTime) -> float:
        return (self.measured_us - before.measured_us) / (self.profiled_us - before.profiled_us)


def _shape(
    tokens: np.ndarray[tuple[int], np.dtype[np.int64]], keys: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> BatchShape:
    return BatchShape(len(tokens), int(tokens.sum()), int((tokens**2).sum()), len(np.unique(keys)))


def _taken_us(client: HplmClient, hplm: str, text: str) -> float:
    sent_s = time.perf_counter()
    client.infer(hplm, text)
    return 1e6 * (time.perf_counter() - sent_s)
