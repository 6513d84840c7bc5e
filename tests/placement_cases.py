"""Random planning problems."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from builder.placement.planner.group import Device
from builder.placement.planner.model import Model
from builder.placement.planner.problem import Problem
from builder.placement.planner.traffic import Traffic


def model_of(root: str, alone_us: int, size_bytes: int, halves: int = 12, **more: float) -> Model:
    return Model(root, (alone_us // halves,) * halves, (size_bytes // halves,) * halves, **more)  # type: ignore[arg-type]


def gamma_traffic(
    rates_per_s: Sequence[float], cv: float, duration_s: float, patience_us: Sequence[int], rng: np.random.Generator
) -> Traffic:
    arrivals = []
    for rate in rates_per_s:
        gaps = rng.gamma(1 / cv**2, cv**2 / rate, int(3 * rate * duration_s) + 200)
        times = np.cumsum(gaps)
        arrivals.append((1e6 * times[times < duration_s]).astype(np.int64))
    return Traffic.of_models(arrivals, patience_us)


def devices(count: int, memory_bytes: int = 1_000, hosts: int = 1) -> tuple[Device, ...]:
    return tuple(Device(f"d{number}", memory_bytes, f"h{number * hosts // count}") for number in range(count))


def random_problem(chance: random.Random, most_models: int = 3, most_devices: int = 4) -> Problem:
    """Models of some sizes, of which not all fit on one device; bursty traffic near what the devices can do."""
    num_models, num_devices = chance.randint(2, most_models), chance.randint(2, most_devices)
    alone_us = [chance.choice([48_000, 60_000, 120_000]) for _ in range(num_models)]
    has_batches = chance.random() < 0.3  # of which none takes half of what others' requests have
    models = [
        model_of(
            f"r{number}",
            each,
            chance.choice([480, 600, 720, 960]),
            full_rows=8 if has_batches else 1,
            full_batch_us=each + 60_000 if has_batches else 0,
        )
        for number, each in enumerate(alone_us)
    ]
    weights = [chance.choice([1, 1, 2, 6]) for _ in models]
    load = (
        chance.choice([0.2, 0.5, 0.8])
        * num_devices
        * 1e6
        / sum(weight * model.busy_us for weight, model in zip(weights, models, strict=True))
    )
    rng = np.random.default_rng(chance.randrange(2**32))
    rates = [load * weight for weight in weights]
    duration_s = 2_000 / sum(rates)
    patience_us = [(10 if has_batches else chance.choice([2, 5, 10])) * each for each in alone_us]
    traffic = gamma_traffic(rates, chance.choice([1.0, 4.0]), duration_s, patience_us, rng)
    return Problem(tuple(models), devices(num_devices), traffic)
