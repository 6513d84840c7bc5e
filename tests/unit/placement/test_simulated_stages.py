"""Simulated stages against a slow loop over batches and stages, and what may not stand beside them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.policies import FirstComeFirstServed
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.placement import Exits, SimulatedLoad, Simulator, Stages, Students, Workload
from builder.placement.fleet.fleet_simulator import FleetSimulator
from builder.placement.machine import SharedMachine
from builder.placement.server_costs import CoreCosts, ServerCosts
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import FixedLengths
from workload.tenants import UniformTenants

MODEL = CostModel(4_096.0, 0.0, 64.0, 0.0, 0.0)


def slow_tandem(load: SimulatedLoad, shares: tuple[float, ...], max_rows: int) -> tuple[list[int], list[int]]:
    """First come, first served: when each request is answered, and the rows of each batch.

    A batch goes on as soon as it is through its stage and the batch before it has left the next one.
    """
    answered_us, rows_of_batches = [], []
    left_us = [0] * len(shares)
    arrivals_us, lengths = load.queued_us.tolist(), load.tokens.tolist()
    while len(answered_us) < len(load):
        first = len(answered_us)
        now_us = max(left_us[0], arrivals_us[first])
        rows = [place for place in range(first, len(load)) if arrivals_us[place] <= now_us][:max_rows]
        whole_us = MODEL.predict_us(BatchShape(len(rows), sum(lengths[place] for place in rows), 0, 1))
        for stage, share in enumerate(shares):
            now_us += max(1, round(share * round(whole_us)))
            if stage + 1 < len(shares):
                now_us = max(now_us, left_us[stage + 1])
            left_us[stage] = now_us
        answered_us += [now_us] * len(rows)
        rows_of_batches.append(len(rows))
    return answered_us, rows_of_batches


def test_batches_pass_the_stages_as_in_a_slow_loop(seed: int) -> None:
    chance = random.Random(seed)
    have_waited = False
    for number in range(60):
        count, max_rows = chance.randint(1, 50), 2 ** chance.randint(0, 3)
        parts = [chance.randint(1, 4) for _ in range(chance.randint(2, 4))]
        shares = tuple(part / sum(parts) for part in parts)
        step_us = chance.choice([100, 2_000, 8_000])
        queued_us = np.sort([step_us * chance.randrange(count) for _ in range(count)])
        tokens = np.array([chance.randint(1, 100) for _ in range(count)])
        tenants = np.zeros(count, np.int64)
        load = SimulatedLoad.in_order(1.0, queued_us, queued_us, tokens, tenants, None)
        capacity = Capacity(max_rows, 1 << 20, 64)
        simulation = Simulator(FirstComeFirstServed(), MODEL, capacity, stages=Stages(shares)).run(load)
        answered_us, rows_of_batches = slow_tandem(load, shares, max_rows)
        case = f"case {number} of seed {seed}"
        assert simulation.answered_us.tolist() == answered_us, case
        assert simulation.batches.rows.tolist() == rows_of_batches, case
        alone_us = simulation.batches.started_us + np.round(shares[0] * (4_096 + 64 * simulation.batches.tokens))
        have_waited |= bool((simulation.batches.ended_us > alone_us).any())
    assert have_waited, "no batch was ever held up by the one before it"


def test_requests_slow_each_stage_down(seed: int) -> None:
    """Walk through the stages of each batch microsecond by microsecond."""
    chance = random.Random(seed)
    shares, whole_us = (0.25, 0.5, 0.25), 800
    for _ in range(30):
        offered = sorted(chance.randrange(8_000) for _ in range(chance.randint(0, 120)))
        cores = CoreCosts(1.0, chance.choice([0.0, 20.0, 100.0]), 0.0, chance.choice([1.0, 2.0, 5.0]))
        costs = ServerCosts(MODEL, cores)
        model = CostModel(whole_us, 0.0, 0.0, 0.0, 0.0)
        machine = SharedMachine(costs, model, offered, np.random.default_rng(0), Stages(shares))
        left_us, start_us = [0.0] * len(shares), 0.0
        for _ in range(5):
            start_us = max(start_us, left_us[0]) + chance.choice([0, 0, 700])
            machine.begin(BatchShape(1, 1, 1, 1), int(start_us))
            now_us = start_us
            for stage, share in enumerate(shares):
                began_us = walked_us = now_us
                end_us = began_us + share * whole_us
                while walked_us < end_us:
                    end_us += cores.per_offered_us * offered.count(walked_us)
                    end_us = min(end_us, began_us + share * whole_us * cores.most_stretch)
                    walked_us += 1
                now_us = max(end_us, left_us[stage + 1]) if stage + 1 < len(shares) else end_us
                left_us[stage] = now_us
            assert machine.end_us() == left_us[0]
            assert machine.answered_us(1, machine.end_us()) == left_us[-1]


def test_what_serving_takes_is_added_to_stages(seed: int) -> None:
    """Where it takes nothing, a server of stages answers as without it; where it takes more, fewer are on time."""
    workload = Workload(PoissonArrivals(1_300.0), FixedLengths(20), UniformTenants(20), UniformDeadlines(300, 900))
    load, model = workload.draw(5.0, seed), CostModel(8_000.0, 0.0, 80.0, 0.0, 0.0)

    def attained(costs: ServerCosts | None) -> float:
        simulator = Simulator(
            FirstComeFirstServed(), model, Capacity(64), AdmissionSettings(), costs=costs, stages=Stages.even(2)
        )
        return simulator.run(load).attainment

    slow = ServerCosts(model, CoreCosts(1.5, 500.0, 0.0, 3.0))
    assert attained(ServerCosts(model)) == pytest.approx(attained(None), abs=0.03)
    assert attained(slow) < attained(None) - 0.2


def test_even_stages_without_batches_wait_as_the_formula_says(seed: int) -> None:
    """Deterministic stages wait as one that takes as long as the slowest: D + rate * d ** 2 / (2 * (1 - rate * d))."""
    workload = Workload(PoissonArrivals(100.0), FixedLengths(20), UniformTenants(1))
    load = workload.draw(150.0, seed)
    model = CostModel(10_000.0, 0.0, 0.0, 0.0, 0.0)
    simulation = Simulator(FirstComeFirstServed(), model, Capacity(1), stages=Stages.even(2)).run(load)
    slowest_s, rate_per_s = 0.005, len(load) / load.duration_s
    expected_s = 0.010 + rate_per_s * slowest_s**2 / (2 * (1 - rate_per_s * slowest_s))
    assert simulation.latencies_us.mean() / 1e6 == pytest.approx(expected_s, rel=0.03)


def test_stages_answer_more_than_one_and_admission_keeps_its_word(seed: int) -> None:
    """At nearly twice what one stage of all layers answers, two answer nearly all."""
    workload = Workload(PoissonArrivals(1_000.0), FixedLengths(20), UniformTenants(20), UniformDeadlines(500, 1_500))
    load, capacity = workload.draw(6.0, seed), Capacity(64)
    model = CostModel(8_000.0, 0.0, 80.0, 0.0, 0.0)  # of full batches one stage answers 580 rows a second
    attained = {}
    for count in (1, 2):
        simulation = Simulator(
            FirstComeFirstServed(), model, capacity, AdmissionSettings(), stages=Stages.even(count)
        ).run(load)
        assert simulation.admitted_on_time > 0.99
        attained[count] = simulation.attainment
    assert attained[1] < 0.8 and attained[2] > 0.95


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ((), "1 to 16 stages, not 0"),
        ((1 / 17,) * 17, "1 to 16 stages, not 17"),
        ((0.5, 0.4), "add up to 1, not 0.5, 0.4"),
        ((1.2, -0.2), "above 0"),
    ],
)
def test_stages_that_cannot_be(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Stages(shares)


def test_what_stages_cannot_have_beside_them() -> None:
    policy, admission, two = FirstComeFirstServed(), AdmissionSettings(), Stages.even(2)
    for named in (
        {"exits": Exits(0.5, 0.5)},
        {"students": Students(2, 0.25), "admission": admission},
    ):
        with pytest.raises(InvalidArgumentError, match="without ladders and students"):
            Simulator(policy, MODEL, stages=two, **named)
    with pytest.raises(InvalidArgumentError, match="no ladders and no stages"):
        FleetSimulator({"server-1": Simulator(policy, MODEL, stages=two)})
