"""The simulated fleet against the slow reference, request by request and batch by batch, on fresh random loads."""

from __future__ import annotations

import math
import random
from functools import partial

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.policies import FirstComeFirstServed
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.placement import Exits, SimulatedLoad, Simulator, Workload
from builder.placement.fleet.fleet_simulation import FleetSimulation
from builder.placement.fleet.fleet_simulator import FleetSimulator
from builder.placement.fleet.happenings import Drain, Happening, Loss
from builder.placement.policies import POLICY_NAMES, policy_named
from fleet_reference import ReferenceFleet
from server_cases import random_costs, reference_of
from simulation_reference import SIMULATED, ReferenceLoop, Request
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import FixedLengths, NormalLengths
from workload.tenants import UniformTenants, ZipfTenants

COST_MODEL = CostModel(1_000.0, 200.0, 20.0, 0.1, 50.0)
CAPACITY = Capacity(16)


def random_load(chance: random.Random) -> SimulatedLoad:
    """Few distinct times, so that many things happen at once; requests overtake each other on their way."""
    count = chance.randint(1, 80)
    step = chance.choice([1, 500, 5_000])
    arrived_us = np.sort([step * chance.randrange(count) for _ in range(count)])
    delays_us = np.array([chance.choice([0, step, 3 * step]) for _ in range(count)])
    tokens = np.array([chance.randint(1, 40) for _ in range(count)])
    tenants = np.array([chance.randrange(12) for _ in range(count)])
    patience_us = np.array([chance.randrange(1, 40) * 1_000 for _ in range(count)])
    deadlines_us = arrived_us + patience_us if chance.random() < 0.8 else None
    return SimulatedLoad.in_order(1.0, arrived_us, arrived_us + delays_us, tokens, tenants, deadlines_us)


def random_happenings(chance: random.Random, num_servers: int, until_us: int) -> list[Happening]:
    happenings: list[Happening] = []
    for server in range(num_servers):
        if chance.random() < 0.5:
            at_us, noticed_us = chance.randrange(until_us + 1), chance.choice([0, 500, 10_000])
            back_us = chance.choice([None, at_us + noticed_us, at_us + noticed_us + 5_000])
            happenings.append(chance.choice([Loss, Drain])(server, at_us, back_us, noticed_us))
    return happenings


def requests_of(sent: SimulatedLoad) -> list[Request]:
    """As they come to the gateway."""
    columns = (sent.arrived_us, sent.tenants, sent.tokens)
    deadlines = [None] * len(sent) if sent.deadlines_us is None else sent.deadlines_us.tolist()
    rows = zip(*(column.tolist() for column in columns), deadlines, strict=True)
    return [Request(place, *row) for place, row in enumerate(rows)]


def fates_of(fleet: FleetSimulation) -> list[str]:
    fates = np.where(fleet.together.is_answered, "answered", "").astype(object)
    for reason, places in [*fleet.together.rejections.items(), ("lost", fleet.lost)]:
        assert not fates[places].any(), "one request, two fates"
        fates[places] = reason
    return list(fates)


def expected_fates(reference: ReferenceFleet, load: SimulatedLoad) -> list[str | None]:
    """Return them by the deadlines of the requests: a server that gets one for the second time knows only its own."""
    ran = {
        place: end_us
        for index in range(len(reference.names))
        for _, end_us, places in reference.batches_of(index)
        for place in places
    }
    fates: list[str | None] = []
    for place in range(len(load)):
        if place in reference.lost:
            fates.append("lost")
        elif place not in ran:
            fates.append(reference.final[place].fate)
        else:
            due_us = math.inf if load.deadlines_us is None else load.deadlines_us[place]
            fates.append(Rejection.LATE_COMPUTED if ran[place] >= due_us else "answered")
    return fates


def batches_of(fleet: FleetSimulation, name: str) -> list[tuple[int, int, list[int]]]:
    batches = fleet.batches[name]
    rows = np.split(batches.places, np.cumsum(batches.rows))[:-1]
    times = zip(batches.started_us.tolist(), batches.ended_us.tolist(), strict=True)
    return [(start, end, sorted(places.tolist())) for (start, end), places in zip(times, rows, strict=True)]


def loop_of(policy: str, cost_model: CostModel, capacity: Capacity, max_waiting: int, asks: bool) -> ReferenceLoop:
    chosen, admission = policy_named(policy, cost_model), None
    if asks:
        costs = LiveCosts(cost_model)
        admission = Admission(lambda _: costs, capacity, AdmissionSettings(max_waiting), chosen.order)
        admission.serves(SIMULATED)
    return ReferenceLoop(chosen, cost_model, capacity, max_waiting, admission)


@pytest.mark.parametrize("asks_admission", [pytest.param(True, marks=pytest.mark.long), False])
def test_every_request_meets_the_fate_of_the_reference(asks_admission: bool, seed: int) -> None:
    chance = random.Random(seed)
    seen: set[str | None] = set()
    for number in range(120):
        load, names = random_load(chance), [f"server-{index}" for index in range(1, chance.randint(2, 5))]
        capacity = Capacity(2 ** chance.randint(0, 3), 2 ** chance.randint(5, 7), chance.randint(1, 6))
        cost_model = CostModel(chance.choice([0, 4096]), chance.choice([0, 500]), chance.randrange(1, 100), 0, 0)
        max_waiting, policy = chance.choice([3, 1_000]), chance.choice(POLICY_NAMES)
        balance = chance.choice([0, 100, 125, 300])
        happenings = random_happenings(chance, len(names), int(load.arrived_us[-1]))
        settings = AdmissionSettings(max_waiting) if asks_admission else None
        simulators = {
            name: Simulator(policy_named(policy, cost_model), cost_model, capacity, settings, max_waiting)
            for name in names
        }
        fleet = FleetSimulator(simulators, balance).run(load, happenings)
        sent = load.by_arrival()
        new_loop = partial(loop_of, policy, cost_model, capacity, max_waiting, asks_admission)
        reference = ReferenceFleet(names, balance, new_loop, happenings)
        reference.play(requests_of(sent), sent.queued_us.tolist())
        case = f"case {number} of seed {seed}"
        expected = expected_fates(reference, sent)
        assert fates_of(fleet) == expected, case
        assert list(fleet.routed.values()) == reference.routed, case
        assert fleet.num_retried == len(reference.retried), case
        for index, name in enumerate(names):
            played = [(start, end, sorted(places)) for start, end, places in reference.batches_of(index)]
            assert batches_of(fleet, name) == played, case
        seen |= set(expected)
    assert {"answered", "lost", Rejection.LATE_WAITING, Rejection.LATE_COMPUTED, Rejection.QUEUE_FULL} <= seen


def test_servers_with_costs_meet_the_reference_too(seed: int) -> None:
    chance = random.Random(seed)
    seen: set[str | None] = set()
    for number in range(60):
        load, names = random_load(chance).by_arrival().undelayed(), ["server-1", "server-2", "server-3"]
        capacity, model = Capacity(2 ** chance.randint(0, 3)), CostModel(4096, chance.choice([0, 500]), 30, 0, 0)
        costs, settings = random_costs(chance, model), AdmissionSettings(chance.choice([5, 1_000]))
        happenings = random_happenings(chance, len(names), int(load.arrived_us[-1]))
        simulators = {
            name: Simulator(policy_named("fcfs", model), model, capacity, settings, costs=costs) for name in names
        }
        fleet = FleetSimulator(simulators).run(load, happenings)
        new_loop = partial(reference_of, costs, capacity, settings, "fcfs", 0)
        reference = ReferenceFleet(names, 125, new_loop, happenings)
        reference.play(requests_of(load), load.queued_us.tolist())
        case = f"case {number} of seed {seed}"
        assert list(fleet.routed.values()) == reference.routed, case
        for index, name in enumerate(names):
            played = [(start, end, sorted(places)) for start, end, places in reference.batches_of(index)]
            assert batches_of(fleet, name) == played, case
        seen |= set(fates_of(fleet))
    assert {"answered", "lost", Rejection.PREDICTED_LATE, Rejection.LATE_COMPUTED} <= seen


def fleet_of(count: int, balance: int = 125, admits: bool = True) -> FleetSimulator:
    settings = AdmissionSettings() if admits else None
    servers = {
        f"server-{number}": Simulator(FirstComeFirstServed(), COST_MODEL, CAPACITY, settings)
        for number in range(1, count + 1)
    }
    return FleetSimulator(servers, balance)


def load_of(rate_per_s: float, tenants: int = 400, seconds: float = 4.0) -> SimulatedLoad:
    deadlines = UniformDeadlines(50, 200)
    workload = Workload(
        PoissonArrivals(rate_per_s), NormalLengths(5), UniformTenants(tenants), deadlines, retrieval_us=500
    )
    return workload.draw(seconds, seed=3)


def test_a_fleet_of_one_is_a_server() -> None:
    load = load_of(800)
    alone = Simulator(FirstComeFirstServed(), COST_MODEL, CAPACITY, AdmissionSettings()).run(load)
    fleet = fleet_of(1).run(load)
    assert np.array_equal(alone.is_answered, fleet.together.is_answered)
    assert np.array_equal(alone.answered_us[alone.is_answered], fleet.together.answered_us[alone.is_answered])


@pytest.mark.long
def test_twice_the_servers_answer_twice_as_much() -> None:
    one, two = fleet_of(1).run(load_of(3_000)), fleet_of(2).run(load_of(6_000))
    assert two.together.goodput_per_s == pytest.approx(2 * one.together.goodput_per_s, rel=0.05)
    assert min(row["busy"] for row in two.rows()) > 0.9
    assert two.figures()["busy"] == pytest.approx(np.mean([row["busy"] for row in two.rows()]))


def test_a_bound_spreads_the_requests_of_one_tenant() -> None:
    load = load_of(2_500, tenants=1)
    bound, free = fleet_of(4).run(load), fleet_of(4, balance=0).run(load)
    assert sorted(free.routed.values())[:3] == [0, 0, 0]
    assert sum(count > 0.15 * len(load) for count in bound.routed.values()) >= 3
    assert bound.attainment > free.attainment + 0.3


def test_a_lost_server_loses_no_request_where_another_one_has_room() -> None:
    load = load_of(700)
    fleet = fleet_of(2, balance=0).run(load, [Loss(0, 1_000_000, back_us=2_000_000)])
    assert len(fleet.lost) == 0 and fleet.num_retried > 50
    assert fleet.attainment > 0.98
    gone = fleet.batches["server-1"].started_us
    assert not ((gone >= 1_000_000) & (gone < 2_000_000)).any() and (gone >= 2_000_000).any()


@pytest.mark.parametrize("is_listed_first", [False, True])
def test_a_server_may_be_lost_at_the_moment_at_which_it_is_back(is_listed_first: bool) -> None:
    loss, drain = Loss(0, 1_000_000, back_us=2_000_000), Drain(0, 500_000, back_us=1_000_000)
    happenings = [loss, drain] if is_listed_first else [drain, loss]
    fleet = fleet_of(2, balance=0).run(load_of(700), happenings)
    begun = fleet.batches["server-1"].started_us
    assert not ((begun >= 1_000_000) & (begun < 2_000_000)).any() and (begun >= 2_000_000).any()


def test_a_fleet_of_one_with_costs_is_a_server_too(seed: int) -> None:
    """Rows have a way to the engine that is measured; the time of retrieval, which a load also says, is part of it."""
    costs = random_costs(random.Random(seed), COST_MODEL)
    simulator = Simulator(FirstComeFirstServed(), COST_MODEL, CAPACITY, AdmissionSettings(), costs=costs)
    load = load_of(400)
    alone, fleet = simulator.run(load), FleetSimulator({"server-1": simulator}).run(load)
    assert np.array_equal(alone.answered_us, fleet.together.answered_us)


def test_a_drained_server_answers_what_it_holds() -> None:
    fleet = fleet_of(2).run(load_of(700), [Drain(1, 1_000_000)])
    assert (len(fleet.lost), fleet.num_retried) == (0, 0)
    assert fleet.attainment == 1.0
    assert fleet.batches["server-2"].started_us.max() < 1_600_000


def test_without_any_server_requests_are_lost() -> None:
    load = load_of(200)
    fleet = fleet_of(1).run(load, [Loss(0, 1_000_000)])
    later = np.flatnonzero(load.arrived_us >= 1_000_000)
    assert set(later) <= set(fleet.lost)
    assert fleet.figures()["lost"] == len(fleet.lost) < len(later) + 50


def test_a_fleet_that_cannot_be() -> None:
    with pytest.raises(InvalidArgumentError, match="one server at least"):
        FleetSimulator({})
    with pytest.raises(InvalidArgumentError, match="50 % cannot be kept"):
        fleet_of(2, balance=50)
    with pytest.raises(InvalidArgumentError, match="no ladders"):
        FleetSimulator({"a": Simulator(FirstComeFirstServed(), COST_MODEL, exits=Exits(0.5, 0.5))})
    load = load_of(10)
    with pytest.raises(InvalidArgumentError, match="there is no number 3"):
        fleet_of(2).run(load, [Loss(2, 0)])
    with pytest.raises(InvalidArgumentError, match="server 1 is out already at 1 s"):
        fleet_of(2).run(load, [Drain(0, 0, back_us=1_500_000), Loss(0, 1_000_000)])
    with pytest.raises(InvalidArgumentError, match="back at the earliest"):
        Loss(0, 1_000_000, back_us=1_000_001)
    with pytest.raises(InvalidArgumentError, match="are 0 or more"):
        Drain(-1, 0)


def test_no_load_is_no_error() -> None:
    workload = Workload(PoissonArrivals(5.0), FixedLengths(4), ZipfTenants(3))
    fleet = fleet_of(3).run(workload.draw(0.0, seed=1), [Loss(0, 5)])
    assert fleet.figures()["requests"] == 0 and [row["busy"] for row in fleet.rows()] == [0.0] * 3
