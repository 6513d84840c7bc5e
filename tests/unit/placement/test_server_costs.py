"""What serving takes beside batches: the simulator against the slow reference, and the file of what was measured."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backends.errors import CorruptFileError, FormatVersionError, InvalidArgumentError
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.policies import FirstComeFirstServed
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.storage import read_json, write_json
from builder.placement import SimulatedLoad, Simulation, Simulator, Workload
from builder.placement.machine import SharedMachine
from builder.placement.policies import policy_named
from builder.placement.server_costs import CoreCosts, FrontCosts, Linear, ServerCosts
from server_cases import random_costs, reference_of
from simulation_reference import Request
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths
from workload.tenants import UniformTenants

MODEL = CostModel(1_000.0, 200.0, 20.0, 0.1, 50.0)
COSTS = ServerCosts(
    MODEL,
    CoreCosts(1.25, 300.0, 200.0, 3.0),
    FrontCosts(1_000.0, Linear(2_000.0, 50.0), 500.0),
    Linear(500.0, 10.0),
    Linear(1_000.0, 100.0),
    (0.9, 1.1, 1.3, 0.7),
    {"variant": "test"},
)


def random_load(chance: random.Random) -> SimulatedLoad:
    count, step = chance.randint(1, 80), chance.choice([1, 500, 5_000])
    sent_us = np.sort([step * chance.randrange(count) for _ in range(count)])
    tokens = np.array([chance.randint(1, 40) for _ in range(count)])
    tenants = np.array([chance.randrange(5) for _ in range(count)])
    patience_us = np.array([chance.randrange(1, 100) * 1_000 for _ in range(count)])
    deadlines_us = sent_us + patience_us if chance.random() < 0.9 else None
    return SimulatedLoad.in_order(1.0, sent_us, sent_us, tokens, tenants, deadlines_us)


def fates_of(simulation: Simulation) -> list[str]:
    fates = np.where(simulation.is_answered, "answered", "").astype(object)
    for reason, places in simulation.rejections.items():
        assert not fates[places].any(), "one request, two fates"
        fates[places] = reason
    return list(fates)


def batches_of(simulation: Simulation) -> list[tuple[int, int, list[int]]]:
    batches = simulation.batches
    rows = np.split(batches.places, np.cumsum(batches.rows))[:-1]
    times = zip(batches.started_us.tolist(), batches.ended_us.tolist(), strict=True)
    return [(start, end, sorted(places.tolist())) for (start, end), places in zip(times, rows, strict=True)]


@pytest.mark.parametrize("policy", ["fcfs", "edf", pytest.param("das", marks=pytest.mark.long)])
def test_every_request_meets_the_fate_of_the_reference(policy: str, seed: int) -> None:
    chance = random.Random(seed)
    seen: set[str] = set()
    for number in range(100):
        load = random_load(chance)
        capacity = Capacity(2 ** chance.randint(0, 3), 2 ** chance.randint(5, 7), chance.randint(1, 6))
        model = CostModel(chance.choice([0, 4096]), chance.choice([0, 500]), chance.randrange(1, 100), 0, 0)
        costs = random_costs(chance, model)
        settings = AdmissionSettings(chance.choice([3, 1_000]), predicts=chance.random() < 0.7)
        simulator = Simulator(policy_named(policy, model), model, capacity, settings, costs=costs, seed=number)
        simulation = simulator.run(load)
        reference = reference_of(costs, capacity, settings, policy, number)
        deadlines = [None] * len(load) if load.deadlines_us is None else load.deadlines_us.tolist()
        rows = zip(load.arrived_us.tolist(), load.tenants.tolist(), load.tokens.tolist(), deadlines, strict=True)
        requests = [Request(place, *row) for place, row in enumerate(rows)]
        reference.play(requests)
        case = f"case {number} of seed {seed}"
        assert batches_of(simulation) == [(start, end, sorted(rows)) for start, end, rows in reference.batches], case
        assert fates_of(simulation) == [request.fate for request in requests], case
        answered = [request.answered_us for request in requests if request.answered_us is not None]
        assert simulation.answered_us[simulation.is_answered].tolist() == answered, case
        seen |= set(fates_of(simulation))
    assert {"answered", Rejection.PREDICTED_LATE, Rejection.LATE_WAITING, Rejection.LATE_COMPUTED} <= seen


def test_a_batch_ends_later_by_what_is_sent_and_received_meanwhile(seed: int) -> None:
    """Walk through a batch microsecond by microsecond."""
    chance = random.Random(seed)
    for _ in range(200):
        offered = sorted(chance.randrange(4_000) for _ in range(chance.randint(0, 60)))
        cores = CoreCosts(1.0, chance.choice([0.0, 20.0, 300.0]), 0.0, chance.choice([1.0, 2.0, 5.0]))
        machine = SharedMachine(
            ServerCosts(MODEL, cores), CostModel(800, 0, 0, 0, 0), offered, np.random.default_rng(0)
        )
        start_us = chance.randrange(1_000)
        machine.begin(BatchShape(1, 1, 1, 1), start_us)
        end_us, now_us = float(start_us + 800), start_us
        while now_us < end_us:
            end_us += cores.per_offered_us * offered.count(now_us)
            end_us = min(end_us, start_us + 800 * cores.most_stretch)
            now_us += 1
        assert machine.end_us() == end_us


def attainment(costs: ServerCosts | None, rate_per_s: float) -> float:
    deadlines = UniformDeadlines(50, 200)
    workload = Workload(PoissonArrivals(rate_per_s), NormalLengths(5), UniformTenants(8), deadlines)
    load = workload.draw(10.0, seed=3)
    simulator = Simulator(FirstComeFirstServed(), MODEL, Capacity(16), AdmissionSettings(), costs=costs)
    return simulator.run(load).attainment


@pytest.mark.long
def test_what_serving_takes_is_missing_at_the_batches() -> None:
    nothing = ServerCosts(MODEL)
    assert attainment(nothing, 600) == pytest.approx(attainment(None, 600), abs=0.03)
    assert attainment(COSTS, 600) < attainment(nothing, 600) - 0.1
    assert attainment(COSTS, 50) > 0.99


def test_one_seed_one_result_and_another_one_another() -> None:
    def run(seed: int) -> list[int]:
        workload = Workload(PoissonArrivals(300.0), NormalLengths(5), UniformTenants(8))
        simulator = Simulator(FirstComeFirstServed(), MODEL, Capacity(16), AdmissionSettings(), costs=COSTS, seed=seed)
        return simulator.run(workload.draw(2.0, seed=3)).answered_us.tolist()

    assert run(1) == run(1) != run(2)


def test_several_processes_take_requests_by_turns() -> None:
    slow = replace(COSTS, front=FrontCosts(0.0, Linear(20_000.0, 0.0), 0.0, workers=1, batch_rows=2))
    twice = replace(slow, front=replace(slow.front, workers=2))
    assert attainment(twice, 150) > attainment(slow, 150) + 0.1


def test_what_was_measured_is_read_as_it_was_written(tmp_path: Path) -> None:
    COSTS.write(tmp_path / "costs.json")
    assert ServerCosts.read(tmp_path / "costs.json") == COSTS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scatter": []}, "scatter is not one number above 0 or more"),
        ({"scatter": [[0.0]]}, "scatter is not one number above 0"),
        ({"scatter": [["a"]]}, "scatter is"),
        ({"cores": {"slowness": 0.0}}, "slowness is 0.0, not above 0"),
        ({"front": {}}, "front of .* lacks reach_us"),
        ({"staging": {"constant_us": -1.0, "per_row_us": 0.0}}, "constant_us is -1.0"),
        ({"model": {}}, "model of .* lacks constant_us"),
        ({"measured": 3}, "measured of .* is 3"),
    ],
)
def test_a_file_that_is_none(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "costs.json"
    COSTS.write(path)
    write_json(path, read_json(path) | change)
    with pytest.raises(CorruptFileError, match=message):
        ServerCosts.read(path)


def test_a_file_of_a_later_release(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    COSTS.write(path)
    write_json(path, read_json(path) | {"format_version": 2})
    with pytest.raises(FormatVersionError, match="upgrade"):
        ServerCosts.read(path)


def test_costs_that_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match="scatter around 1"):
        ServerCosts(MODEL, scatter=())
    with pytest.raises(InvalidArgumentError, match="need admission"):
        Simulator(FirstComeFirstServed(), MODEL, costs=COSTS)
