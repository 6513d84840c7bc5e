"""The simulator against the slow reference, request by request and batch by batch, on fresh random loads."""

from __future__ import annotations

import random

import numpy as np
import pytest

from backends.errors import HplmError, InvalidArgumentError
from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import CostModel
from backends.scheduling.depth_choice import DepthChoice
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.order import FairOrder
from backends.scheduling.policies import FirstComeFirstServed, Policy
from backends.scheduling.rejection import Rejection
from backends.scheduling.settings import AdmissionSettings, Capacity, ShareSettings
from backends.scheduling.waiting_room import WaitingRoom
from backends.stack_key import StackKey
from builder.placement import (
    Exits,
    SimulatedLoad,
    Simulation,
    Simulator,
    Students,
    Workload,
    intake,
)
from builder.placement.policies import POLICY_NAMES, policy_named
from builder.placement.simulated_job import SimulatedJob
from simulation_reference import SIMULATED, STUDENTS, ReferenceLoop, Request
from workload.arrivals import DeterministicArrivals, PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import FixedLengths, NormalLengths
from workload.tenants import UniformTenants, ZipfTenants

LEVELS = ("full", "early", "doubtful")
LIKE_EDF = {"sjf", "least-slack"}
COST_MODEL = CostModel(1_000.0, 200.0, 20.0, 0.1, 50.0)


def admission_of(
    cost_model: CostModel,
    capacity: Capacity,
    settings: AdmissionSettings,
    policy: Policy,
    stack: StackKey = SIMULATED,
) -> Admission[Request]:
    costs = LiveCosts(cost_model)
    admission: Admission[Request] = Admission(lambda _: costs, capacity, settings, policy.order)
    admission.serves(stack)
    return admission


def random_load(chance: random.Random) -> SimulatedLoad:
    """Few distinct times, so that many things happen at once; some have come and gone before they queue."""
    count = chance.randint(1, 60)
    step = chance.choice([1, 500, 5_000])
    arrived_us = np.sort([step * chance.randrange(count) for _ in range(count)])
    delays_us = np.array([chance.choice([0, step, 3 * step]) for _ in range(count)])
    tokens = np.array([chance.randint(1, 40) for _ in range(count)])
    tenants = np.array([chance.randrange(5) for _ in range(count)])
    patience_us = np.array([chance.randrange(1, 40) * 1_000 for _ in range(count)])
    deadlines_us = arrived_us + patience_us if chance.random() < 0.8 else None
    return SimulatedLoad.in_order(1.0, arrived_us, arrived_us + delays_us, tokens, tenants, deadlines_us)


def requests_of(load: SimulatedLoad, exits: Exits | None = None) -> list[Request]:
    deadlines = [None] * len(load) if load.deadlines_us is None else load.deadlines_us.tolist()
    columns = (load.queued_us.tolist(), load.tenants.tolist(), load.tokens.tolist(), deadlines)
    requests = [Request(place, *row) for place, row in enumerate(zip(*columns, strict=True))]
    if exits is not None:
        for request, is_sure in zip(requests, exits.leaving(len(load)).tolist(), strict=True):
            request.exit_depth, request.is_sure, request.may_settle = exits.depth, is_sure, exits.may_settle
            request.depth = 1 - exits.share * (1 - exits.depth)
            request.least_depth = exits.depth if exits.may_settle else request.depth
    return requests


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


@pytest.mark.parametrize(
    ("policy", "asks_admission"),
    [
        *(pytest.param(name, True, marks=pytest.mark.long if name in LIKE_EDF else ()) for name in POLICY_NAMES),
        # Without admission, arrivals that cannot fill a batch are skipped, whatever the policy.
        *(pytest.param(name, False, marks=() if name == "fcfs" else pytest.mark.long) for name in POLICY_NAMES),
    ],
)
def test_every_request_meets_the_fate_of_the_reference(
    policy: str, asks_admission: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    seen: set[str] = set()
    levels: set[str] = set()
    for number in range(120):
        load, exits = random_load(chance), random_exits(chance)
        # Powers of two and whole microseconds: the two add in other orders, and no rounding is to part them.
        capacity = Capacity(2 ** chance.randint(0, 3), 2 ** chance.randint(5, 7), chance.randint(1, 6))
        cost_model = CostModel(chance.choice([0, 4096]), chance.choice([0, 500]), chance.randrange(1, 100), 0, 0)
        max_waiting = chance.choice([3, 10, 1_000])
        settings = random_settings(chance, max_waiting) if asks_admission else None
        chosen = policy_named(policy, cost_model)
        admission = None if settings is None else admission_of(cost_model, capacity, settings, chosen)
        monkeypatch.setattr(intake, "_BLOCK", chance.choice([3, 10, 1_000]))
        simulation = Simulator(chosen, cost_model, capacity, settings, max_waiting, exits=exits).run(load)
        reference = ReferenceLoop(chosen, cost_model, capacity, max_waiting, admission)
        requests = requests_of(load, exits)
        reference.play(requests)
        case = f"case {number} of seed {seed}"
        assert fates_of(simulation) == [request.fate for request in requests], case
        assert batches_of(simulation) == [(start, end, sorted(places)) for start, end, places in reference.batches], (
            case
        )
        for place, request in enumerate(requests):
            if request.answered_us is not None:
                assert simulation.answered_us[place] == request.answered_us, case
                assert LEVELS[simulation.levels[place]] == request.level, case
                levels.add(request.level)
        seen |= set(fates_of(simulation))
    refused = {Rejection.LATE_WAITING, Rejection.LATE_COMPUTED, Rejection.QUEUE_FULL}
    if asks_admission:
        refused |= {Rejection.PREDICTED_LATE, Rejection.LATE_ON_ARRIVAL, Rejection.TENANT_QUOTA, Rejection.TENANT_SHARE}
    assert seen == {"answered"} | refused
    assert levels == set(LEVELS)


@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=pytest.mark.long if name in LIKE_EDF else ()) for name in POLICY_NAMES]
)
def test_students_meet_the_reference_too(policy: str, seed: int) -> None:
    chance, seen = random.Random(seed), set[int]()
    for number in range(60):
        load = random_load(chance)
        students = Students(4, 0.25, chance.choice([None, None, 1, 3]))
        capacity = Capacity(2 ** chance.randint(0, 3), 2 ** chance.randint(5, 7), chance.randint(1, 6))
        cost_model = CostModel(chance.choice([0, 4096]), chance.choice([0, 500]), 4 * chance.randrange(1, 25), 0, 0)
        settings, chosen = random_settings(chance, 1_000), policy_named(policy, cost_model)
        admission = admission_of(cost_model, capacity, settings, chosen, STUDENTS)
        simulation = Simulator(chosen, cost_model, capacity, settings, students=students).run(load)
        reference = ReferenceLoop(chosen, cost_model, capacity, 1_000, admission)
        reference.students, reference.student_depths = DepthChoice(admission), students.choices
        requests = requests_of(load)
        for request in requests:
            request.root, (request.depth, request.least_depth, request.most_depth, _) = STUDENTS, students.depths
        reference.play(requests)
        case = f"case {number} of seed {seed}"
        assert fates_of(simulation) == [request.fate for request in requests], case
        assert batches_of(simulation) == [(start, end, sorted(places)) for start, end, places in reference.batches], (
            case
        )
        assert simulation.batches.students.tolist() == reference.counts, case
        seen |= set(reference.counts)
    assert seen == {1, 2, 3, 4}


@pytest.mark.long
def test_the_load_decides_how_many_students_answer() -> None:
    capacity = Capacity(64, 4096, 64)

    def figures(rate_per_s: float, count: int | None) -> dict[str, float]:
        workload = Workload(
            PoissonArrivals(rate_per_s), FixedLengths(20), UniformTenants(50), UniformDeadlines(100, 200)
        )
        students = Students(3, 1 / 6, count)
        load = workload.draw(6.0, 1)
        return (
            Simulator(FirstComeFirstServed(), COST_MODEL, capacity, AdmissionSettings(), students=students)
            .run(load)
            .figures()
        )

    quiet, busy, always = figures(50.0, None), figures(3_600.0, None), figures(3_600.0, 3)
    assert quiet["students"] == 3 and quiet["changes_per_minute"] == 0
    assert busy["students"] < 2 and busy["attainment"] > always["attainment"] + 0.1
    assert always["students"] == 3


@pytest.mark.parametrize("values", [(0, 0.5, None), (9, 0.1, None), (3, 0.5, None), (2, 0.0, None), (2, 0.3, 3)])
def test_students_that_cannot_be(values: tuple[int, float, int | None]) -> None:
    with pytest.raises(InvalidArgumentError):
        Students(*values)


def test_students_need_admission_and_have_no_exits() -> None:
    with pytest.raises(InvalidArgumentError, match="students need admission"):
        Simulator(FirstComeFirstServed(), COST_MODEL, students=Students(2, 0.3))
    with pytest.raises(InvalidArgumentError, match="no exits"):
        Simulator(
            FirstComeFirstServed(),
            COST_MODEL,
            admission=AdmissionSettings(),
            exits=Exits(0.5, 0.5),
            students=Students(2, 0.3),
        )


def random_exits(chance: random.Random) -> Exits | None:
    """In powers of two, for the same reason."""
    exits = Exits(chance.choice([0.0, 0.5, 1.0]), chance.choice([0.25, 0.5]), chance.choice([False, True]))
    return chance.choice([None, exits])


def random_settings(chance: random.Random, max_waiting: int) -> AdmissionSettings:
    """Some that leave a bit to be late, and shares that count soon."""
    return AdmissionSettings(
        max_waiting,
        chance.choice([None, 2, 1_000]),
        predicts=chance.random() < 0.7,
        margin_percent=chance.choice([0, 10]),
        shares=ShareSettings({"tenant1": chance.choice([0.5, 3.0])}, burst_us=chance.choice([0.0, 5_000.0])),
    )


def test_a_load_in_blocks_meets_the_reference_too(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_BLOCK", 1_000)
    workload = Workload(
        PoissonArrivals(9_000.0), FixedLengths(2), UniformTenants(3), UniformDeadlines(2, 60), retrieval_us=700
    )
    load = workload.draw(1.0, seed)
    assert len(load) > 8_000
    capacity = Capacity(max_rows=32)
    cost_model = CostModel(1_000.0, 80.0, 5.0, 0.0, 10.0)
    simulation = Simulator(FirstComeFirstServed(), cost_model, capacity).run(load)
    requests = requests_of(load)
    ReferenceLoop(FirstComeFirstServed(), cost_model, capacity, 10_000).play(requests)
    assert fates_of(simulation) == [request.fate for request in requests]
    assert 0.1 < simulation.attainment < 1.0


def test_an_idle_machine_answers_each_alone() -> None:
    workload = Workload(DeterministicArrivals(10.0), FixedLengths(10), UniformTenants(1), None, retrieval_us=300)
    simulation = Simulator(FirstComeFirstServed(), COST_MODEL).run(workload.draw(5.0, seed=1))
    alone_us = round(1_000 + 200 + 20 * 10 + 0.1 * 100 + 50)
    assert simulation.latencies_us.tolist() == [300 + alone_us] * 50
    assert simulation.batches.rows.tolist() == [1] * 50
    figures = simulation.figures()
    assert figures["attainment"] == 1.0
    assert figures["goodput_per_s"] == pytest.approx(10.0)
    assert figures["utility"] == pytest.approx(50 / 10)
    assert figures["p99_ms"] == pytest.approx((300 + alone_us) / 1e3)
    assert simulation.rejected() == {}


def test_overload_is_refused_not_forgotten() -> None:
    workload = Workload(PoissonArrivals(2_000.0), NormalLengths(5), ZipfTenants(50), UniformDeadlines(50, 200))
    simulation = Simulator(FirstComeFirstServed(), COST_MODEL, Capacity(max_rows=16)).run(workload.draw(5.0, seed=3))
    refused = sum(simulation.rejected().values())
    assert refused > 0
    assert refused + int(simulation.is_answered.sum()) == len(simulation.load)
    assert simulation.busy > 0.95
    assert (simulation.batches.rows <= 16).all()
    assert (simulation.batches.started_us[1:] >= simulation.batches.ended_us[:-1]).all()


def test_lone_rows_that_leave_are_answered_at_their_exit() -> None:
    exits = Exits(0.4, 0.25)
    workload = Workload(DeterministicArrivals(10.0), FixedLengths(10), UniformTenants(1), None, retrieval_us=300)
    simulation = Simulator(FirstComeFirstServed(), COST_MODEL, exits=exits).run(workload.draw(20.0, seed=3))
    leaving = exits.leaving(len(simulation.load))
    whole_us, early_us = (round(200 + 50 + depth * (1_000 + 20 * 10 + 0.1 * 100)) for depth in (1, 0.25))
    assert simulation.latencies_us.tolist() == [300 + (early_us if leaves else whole_us) for leaves in leaving.tolist()]
    figures = simulation.figures()
    assert (figures["early"], figures["doubtful"]) == (pytest.approx(leaving.mean()), 0.0)
    assert 0.2 < figures["early"] < 0.6


@pytest.mark.long
def test_ladders_answer_more_of_an_overload_and_settle_for_it() -> None:
    per_token = CostModel(0.0, 0.0, 100.0, 0.0, 0.0)
    workload = Workload(PoissonArrivals(2_500.0), FixedLengths(10), UniformTenants(9), UniformDeadlines(50, 200))
    load, settings = workload.draw(5.0, seed=3), AdmissionSettings()

    def figures(exits: Exits | None) -> dict[str, float]:
        return (
            Simulator(policy_named("das", per_token), per_token, Capacity(), settings, exits=exits).run(load).figures()
        )

    full, ladders = figures(None), figures(Exits(0.5, 0.25))
    assert full["goodput_per_s"] < 1_050 < 2_000 < ladders["goodput_per_s"]
    assert ladders["early"] > 0.4 and ladders["doubtful"] > 0
    assert "early" not in full


def test_where_late_rows_are_rejected_no_answer_is_doubtful_and_fewer_are_given() -> None:
    per_token = CostModel(0.0, 0.0, 100.0, 0.0, 0.0)
    workload = Workload(PoissonArrivals(2_500.0), FixedLengths(10), UniformTenants(9), UniformDeadlines(50, 200))
    load = workload.draw(5.0, seed=3)
    settle, reject = (
        Simulator(FirstComeFirstServed(), per_token, admission=AdmissionSettings(), exits=Exits(0.5, 0.25, may_settle))
        .run(load)
        .figures()
        for may_settle in (True, False)
    )
    assert reject["doubtful"] == 0 < settle["doubtful"]
    assert 1_200 < reject["goodput_per_s"] < 1_700 < settle["goodput_per_s"]


@pytest.mark.parametrize(("share", "depth"), [(-0.1, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.0), (float("nan"), 0.5)])
def test_exits_that_cannot_be(share: float, depth: float) -> None:
    with pytest.raises(InvalidArgumentError):
        Exits(share, depth)


def test_one_seed_one_result_and_each_column_its_own_chance() -> None:
    def drawn(lengths: FixedLengths | NormalLengths, seed: int) -> SimulatedLoad:
        return Workload(
            PoissonArrivals(300.0), lengths, ZipfTenants(9), UniformDeadlines(5, 50), retrieval_us=900
        ).draw(3, seed)

    def figures(load: SimulatedLoad) -> dict[str, float]:
        return Simulator(FirstComeFirstServed(), COST_MODEL).run(load).figures()

    first, again, other = drawn(NormalLengths(9), 1), drawn(NormalLengths(9), 1), drawn(NormalLengths(9), 2)
    assert figures(first) == figures(again) != figures(other)
    fixed = drawn(FixedLengths(9), 1)
    assert np.array_equal(fixed.arrived_us, first.arrived_us)
    assert np.array_equal(fixed.tenants, first.tenants)


def test_no_load_is_no_error() -> None:
    workload = Workload(PoissonArrivals(5.0), FixedLengths(4), UniformTenants(1))
    simulation = Simulator(FirstComeFirstServed(), COST_MODEL).run(workload.draw(0.0, seed=1))
    assert simulation.figures()["attainment"] == 1.0
    assert simulation.figures()["requests"] == 0


def test_a_policy_that_chooses_nobody_is_told() -> None:
    class Nobody:
        order = FairOrder()

        def select(self, waiting: WaitingRoom[SimulatedJob], now_us: int, capacity: Capacity) -> list[int]:
            return []

    workload = Workload(DeterministicArrivals(5_000.0), FixedLengths(4), UniformTenants(1))
    with pytest.raises(HplmError, match=r"chose none of \d+ jobs"):
        Simulator(Nobody(), COST_MODEL).run(workload.draw(1.0, seed=1))
