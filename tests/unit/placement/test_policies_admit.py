"""Every policy with admission in its own order, in virtual time: who is let in is answered, and no flood hurts."""

from __future__ import annotations

import numpy as np
import pytest

from backends.scheduling.cost_model import CostModel
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.placement import SimulatedLoad, Simulation, Simulator, Workload
from builder.placement.described_workload import Machine
from builder.placement.policies import POLICY_NAMES, policy_named
from workload.arrivals import PoissonArrivals
from workload.deadlines import UniformDeadlines
from workload.lengths import NormalLengths
from workload.tenants import UniformTenants

MODEL = CostModel(2_000.0, 100.0, 30.0, 0.01, 50.0)
CAPACITY = Capacity(max_rows=64, max_tokens=1024)
WIDE, SHORT = NormalLengths(standard_deviation=20), NormalLengths(standard_deviation=2, mean=5)
MACHINE = Machine(MODEL, CAPACITY)
RATE_PER_S = MACHINE.rate_per_s(WIDE, UniformTenants(32))
BATCH_MS = MODEL.predict_us(MACHINE.full_batch(WIDE, UniformTenants(32))) / 1e3
# They order by one number as edf does, by another one.
LIKE_EDF = {"sjf", "least-slack"}
# Slots hold less than a batch whose tokens are counted, and admission counts tokens.
whole_batches = pytest.mark.parametrize(
    "policy",
    [
        pytest.param(name, marks=pytest.mark.long) if name in LIKE_EDF else name
        for name in POLICY_NAMES
        if name != "slotted-das"
    ],
)


def drawn(times: float, tenants: int, seed: int, lengths: NormalLengths = WIDE, batches: int = 120) -> SimulatedLoad:
    """Draw a load of `times` what full batches can answer, with deadlines in 5 to 20 batches."""
    deadlines = UniformDeadlines(round(5 * BATCH_MS), round(20 * BATCH_MS))
    arrivals = PoissonArrivals(times * RATE_PER_S)
    workload = Workload(arrivals, lengths, UniformTenants(tenants), deadlines, retrieval_us=2_000)
    return workload.draw(batches * BATCH_MS / 1e3, seed)


def played(policy: str, load: SimulatedLoad) -> Simulation:
    return Simulator(policy_named(policy, MODEL), MODEL, CAPACITY, AdmissionSettings()).run(load)


@pytest.mark.parametrize("times", [pytest.param(1.0, marks=pytest.mark.long), 2.0])
@whole_batches
def test_who_is_let_in_is_answered_in_time(policy: str, times: float, seed: int) -> None:
    simulation = played(policy, drawn(times, 32, seed))
    assert simulation.admitted_on_time >= 0.99
    assert simulation.attainment >= (0.95 if times == 1.0 else 0.48)
    assert simulation.busy > 0.95


@pytest.mark.parametrize(
    "tenants", [1, pytest.param(4, marks=pytest.mark.long), pytest.param(32, marks=pytest.mark.long)]
)
def test_under_overload_the_shortest_are_worth_most(tenants: int, seed: int) -> None:
    load = drawn(2.0, tenants, seed, batches=80)
    utility = {policy: played(policy, load).utility for policy in ("fcfs", "edf", "das")}
    assert utility["das"] >= 1.3 * max(utility["fcfs"], utility["edf"])


@pytest.mark.parametrize(
    "lengths", [pytest.param(WIDE, id="wide"), pytest.param(SHORT, id="short", marks=pytest.mark.long)]
)
@whole_batches
def test_a_flood_costs_the_others_two_points_at_most(policy: str, seed: int, lengths: NormalLengths) -> None:
    """20 tenants at nine tenths of their shares, and one that wants 50 times its own."""
    others = drawn(0.9 * 20 / 21, 20, seed)
    flood = drawn(0.9 * 50 / 21, 1, seed + 1, lengths)
    alone, beside = played(policy, others), played(policy, together(others, flood))
    is_others = beside.load.tenants < 20
    fallen = alone.attainment - beside.is_answered[is_others].mean()
    assert fallen <= 0.02
    assert beside.is_answered[~is_others].any(), "nobody starves"


def together(others: SimulatedLoad, flood: SimulatedLoad) -> SimulatedLoad:
    assert others.deadlines_us is not None and flood.deadlines_us is not None
    return SimulatedLoad.in_order(
        others.duration_s,
        np.concatenate([others.arrived_us, flood.arrived_us]),
        np.concatenate([others.queued_us, flood.queued_us]),
        np.concatenate([others.tokens, flood.tokens]),
        np.concatenate([others.tenants, np.full(len(flood), 20)]),
        np.concatenate([others.deadlines_us, flood.deadlines_us]),
    )
