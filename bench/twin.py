"""One load against the real server and against its simulation, and how far apart the two come out.

The cost model is the root's profile, measured here, times one factor: what full batches of the running server take
with the lower half and the clients on the same cores, over what the profile says. The delay before the queue is what a
request takes on an idle server, less its batch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backends.root.geometry import RootGeometry
from backends.scheduling.admission_settings import AdmissionSettings
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.policy import Capacity
from bench.base_home import BaseHome, Family, Words
from bench.open_loop import Planned, Played, play
from bench.profiled import profiled
from bench.saturation import saturate
from bench.served import Serving, served
from builder.placement import ConstantDelay, SimulatedLoad, Simulation, Simulator, Workload
from builder.placement.policies import policy_named
from clients import HplmClient
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths
from workload.tenants import UniformTenants

ROOT = "base"
LENGTHS = NormalLengths(standard_deviation=20)
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
    simulated: Simulation

    @property
    def error_points(self) -> float:
        return 100 * abs(self.played.attainment - self.simulated.attainment)


def compare(folder: Path, settings: TwinSettings, policy: str, seed: int) -> tuple[Calibration, list[Comparison]]:
    words = Words(settings.geometry.vocab_size)
    texts = _texts(words, seed)
    base = BaseHome(folder / "home", seed)
    base.add_root(ROOT, settings.geometry, list(texts.values()))
    hplms = base.add_hplms(Family(ROOT, "tenant", settings.tenants))
    upper = {"dtype": settings.dtype, "max_rows": str(settings.max_rows), "policy": policy}
    model = profiled(base.home, ROOT, upper, settings.profiled_batches)
    serving = Serving(upper=upper)
    with served(base.home, serving) as server:
        calibration = _calibrated(server.grpc_url, model, texts, hplms, settings, seed)
        return calibration, [
            _compared(server.grpc_url, load, calibration, texts, hplms, settings, policy, seed + number)
            for number, load in enumerate(settings.loads)
        ]


def _texts(words: Words, seed: int) -> dict[int, str]:
    """One text of each length; the root's table holds the fragments of all."""
    chance = np.random.default_rng(seed)
    return {tokens: words.text(chance, tokens) for tokens in range(LENGTHS.shortest, LENGTHS.longest + 1)}


def _calibrated(
    url: str, measured: CostModel, texts: dict[int, str], hplms: Sequence[str], settings: TwinSettings, seed: int
) -> Calibration:
    chance = np.random.default_rng(seed)
    tokens = LENGTHS.draw(settings.calibration_rows, chance)
    keys = chance.integers(len(hplms), size=len(tokens))
    rows = [(hplms[key], texts[length]) for key, length in zip(keys.tolist(), tokens.tolist(), strict=True)]
    saturate(url, rows[: 2 * settings.max_rows], in_flight=2 * settings.max_rows, edge_rows=settings.max_rows // 2)
    taken = saturate(url, rows, in_flight=3 * settings.max_rows, edge_rows=settings.max_rows)
    batch_us = 1e6 * settings.max_rows / taken.rows_per_s
    batches = [slice(start, start + settings.max_rows) for start in range(0, len(rows), settings.max_rows)]
    predicted_us = statistics.mean(measured.predict_us(_shape(tokens[rows], keys[rows])) for rows in batches)
    model = measured.scaled(batch_us / predicted_us)
    return Calibration(model, _delay_us(url, model, texts, hplms), taken.rows_per_s, batch_us)


def _shape(
    tokens: np.ndarray[tuple[int], np.dtype[np.int64]], keys: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> BatchShape:
    return BatchShape(len(tokens), int(tokens.sum()), int((tokens**2).sum()), len(np.unique(keys)))


def _delay_us(url: str, model: CostModel, texts: dict[int, str], hplms: Sequence[str]) -> int:
    alone = BatchShape(1, 20, 400, 1)
    with HplmClient(url) as client:
        taken_us = [_taken_us(client, hplms[number % len(hplms)], texts[alone.tokens]) for number in range(_ALONE)]
    return max(0, round(statistics.median(taken_us) - model.predict_us(alone)))


def _taken_us(client: HplmClient, hplm: str, text: str) -> float:
    sent_s = time.perf_counter()
    client.infer(hplm, text)
    return 1e6 * (time.perf_counter() - sent_s)


def _compared(
    url: str,
    load: float,
    calibration: Calibration,
    texts: dict[int, str],
    hplms: Sequence[str],
    settings: TwinSettings,
    policy: str,
    seed: int,
) -> Comparison:
    batch_ms = calibration.full_batch_us / 1e3
    shortest, longest = (max(1, round(times * batch_ms)) for times in settings.deadlines_in_batches)
    workload = Workload(
        PoissonArrivals(load * calibration.rate_per_s),
        LENGTHS,
        UniformTenants(len(hplms)),
        UniformDeadlines(shortest, longest),
        ConstantDelay(calibration.delay_us),
    )
    drawn = workload.draw(settings.duration_in_batches * batch_ms / 1e3, seed)
    played = play(url, _planned(drawn, texts, hplms))
    chosen = policy_named(policy, calibration.cost_model)
    capacity = Capacity(max_rows=settings.max_rows)
    simulator = Simulator(chosen, calibration.cost_model, capacity, AdmissionSettings())
    return Comparison(load, played, simulator.run(drawn))


def _planned(load: SimulatedLoad, texts: dict[int, str], hplms: Sequence[str]) -> list[Planned]:
    assert load.deadlines_us is not None
    deadlines_ms = (load.deadlines_us - load.arrived_us) // 1_000
    columns = (load.arrived_us.tolist(), load.tenants.tolist(), load.tokens.tolist(), deadlines_ms.tolist())
    return [
        Planned(arrived_us / 1e6, hplms[tenant], texts[tokens], deadline_ms)
        for arrived_us, tenant, tokens, deadline_ms in zip(*columns, strict=True)
    ]
