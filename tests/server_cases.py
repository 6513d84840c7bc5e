"""Random costs of a simulated server, and the slow reference of one."""

from __future__ import annotations

import random

import numpy as np

from backends.scheduling.admission import Admission
from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.settings import AdmissionSettings, Capacity
from builder.placement.policies import policy_named
from builder.placement.server_costs import CoreCosts, FrontCosts, Linear, ServerCosts
from server_reference import ReferenceServer
from simulation_reference import SIMULATED, Request


def random_costs(chance: random.Random, model: CostModel) -> ServerCosts:
    def linear() -> Linear:
        return Linear(chance.choice([0.0, 500.0, 3_000.0]), chance.choice([0.0, 100.0]))

    cores = CoreCosts(
        chance.choice([1.0, 1.5]),
        chance.choice([0.0, 250.0]),
        chance.choice([0.0, 500.0]),
        chance.choice([1.0, 1.5, 4.0]),
    )
    front = FrontCosts(chance.choice([0.0, 500.0]), linear(), chance.choice([0.0, 500.0]), 1, chance.choice([1, 3, 64]))
    scatter = tuple(chance.choice([0.5, 1.0, 2.0]) for _ in range(chance.randint(1, 5)))
    return ServerCosts(model, cores, front, linear(), linear(), scatter)


def reference_of(
    costs: ServerCosts, capacity: Capacity, settings: AdmissionSettings, policy: str, seed: int
) -> ReferenceServer:
    learned = LiveCosts(costs.model)
    full = BatchShape(capacity.max_rows, 20 * capacity.max_rows, 400 * capacity.max_rows, 8)
    for factor in costs.scatter[:32]:
        learned.observe(full, factor * costs.cores.slowness * costs.model.predict_us(full))
    chosen = policy_named(policy, costs.model)
    admission: Admission[Request] = Admission(lambda _: learned, capacity, settings, chosen.order)
    admission.serves(SIMULATED)
    first = int(np.random.default_rng(seed).integers(len(costs.scatter)))
    return ReferenceServer(chosen, costs.model, capacity, 10_000, admission, costs=costs, scatter_at=first)
