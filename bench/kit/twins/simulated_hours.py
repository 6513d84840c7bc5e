"""How long the simulator takes for an hour of a thousand requests a second."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.placement import SimulatedLoad, Simulator, Workload
from builder.placement.described_workload import Machine
from builder.placement.fleet.fleet_simulator import FleetSimulator
from builder.placement.policies import policy_named
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths
from workload.tenants import ZipfTenants

RATE_PER_S = 1_000.0
LENGTHS = NormalLengths(standard_deviation=20)
TENANTS = ZipfTenants(1_000)
SHAPE_OF_COSTS = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)
_POLICY = "fcfs"
_ADMITTING = "admitting"
_SERVERS = 4


def hour_rows(simulated_s: float, loads: Sequence[float], policies: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Play every load on machines that it is so much of the capacity of, by each policy, and on a fleet of four.

    The policies alone, and then with admission, as servers and `hplm simulate` have it, which decides about each row.
    """
    # A quick run is so short that one collection of all that was imported would be most of an hour.
    gc.collect()
    gc.freeze()
    rows = [_alone(simulated_s, policy, load, seed) for policy in policies for load in loads]
    rows += [_alone(simulated_s, _POLICY, load, seed, admits=True) for load in loads]
    for admits in (False, True):
        rows += [_fleet(simulated_s, load, admits, seed) for load in loads]
    return rows


def hour_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    slowest: dict[str, float] = {}
    for row in rows:
        name = row["what"].replace("-", "_").replace(" ", "_")
        slowest[name] = max(slowest.get(name, 0.0), row["simulated hour s"])
    of_policies = {name: hour_s for name, hour_s in slowest.items() if not name.startswith(("fleet", _ADMITTING))}
    named = {f"simulated_hour_s_{name}": hour_s for name, hour_s in slowest.items()}
    return {"simulated_hour_s": max(of_policies.values()), **named}


def _alone(simulated_s: float, policy: str, load: float, seed: int, admits: bool = False) -> dict[str, Any]:
    model = _model(load)
    simulator = Simulator(policy_named(policy, model), model, admission=AdmissionSettings() if admits else None)

    def play(drawn: SimulatedLoad) -> tuple[float, float]:
        simulation = simulator.run(drawn)
        return simulation.attainment, float(simulation.batches.rows.mean())

    return _timed(_ADMITTING if admits else policy, load, simulated_s, seed, play)


def _fleet(simulated_s: float, load: float, admits: bool, seed: int) -> dict[str, Any]:
    """The same load for servers that are a quarter as fast each."""
    model = _model(_SERVERS * load)
    admission = AdmissionSettings() if admits else None
    servers = {
        f"server-{number}": Simulator(policy_named(_POLICY, model), model, admission=admission)
        for number in range(1, _SERVERS + 1)
    }

    def play(drawn: SimulatedLoad) -> tuple[float, float]:
        simulation = FleetSimulator(servers).run(drawn).together
        return simulation.attainment, float(simulation.batches.rows.mean())

    return _timed(f"fleet {_ADMITTING}" if admits else "fleet", load, simulated_s, seed, play, _SERVERS)


def _model(load: float) -> CostModel:
    """Make a machine so fast that the rate is this much of its capacity."""
    own_rate_per_s = Machine(SHAPE_OF_COSTS, Capacity()).rate_per_s(LENGTHS, TENANTS)
    return SHAPE_OF_COSTS.scaled(load * own_rate_per_s / RATE_PER_S)


def _timed(
    what: str,
    load: float,
    simulated_s: float,
    seed: int,
    play: Callable[[SimulatedLoad], tuple[float, float]],
    num_servers: int = 1,
) -> dict[str, Any]:
    """Drawing the load counts. Deadlines are some of a server's batches."""
    batch_ms = 64_000.0 / RATE_PER_S * load * num_servers
    deadlines = UniformDeadlines(round(5 * batch_ms), round(20 * batch_ms))
    workload = Workload(PoissonArrivals(RATE_PER_S), LENGTHS, TENANTS, deadlines, retrieval_us=2_000)
    start_s = time.perf_counter()
    drawn = workload.draw(simulated_s, seed)
    attainment, rows_per_batch = play(drawn)
    taken_s = time.perf_counter() - start_s
    return {
        "what": what,
        "load": load,
        "attainment": attainment,
        "rows per batch": rows_per_batch,
        "simulated hour s": 3_600 * taken_s / simulated_s,
        "us per request": 1e6 * taken_s / len(drawn),
    }
