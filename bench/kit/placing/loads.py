"""Models of equal layers, devices, and bursty traffic for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from builder.placement.planner.group import Device
from builder.placement.planner.model import Model
from builder.placement.planner.traffic import Traffic
from workload.arrivals import GammaArrivals


def even_model(root: str, alone_us: int, size_bytes: int, halves: int = 48) -> Model:
    """Return a model that 2, 3, 4, 6 and 8 stages cut evenly."""
    return Model(root, _parts(alone_us, halves), _parts(size_bytes, halves))


def devices(count: int, memory_bytes: int, per_host: int) -> tuple[Device, ...]:
    return tuple(Device(f"d{number}", memory_bytes, f"h{number // per_host}") for number in range(count))


def shares(count: int, exponent: float) -> list[float]:
    """Return shares that fall with the rank, to the power of the exponent."""
    weights = np.arange(1, count + 1) ** -exponent
    return [float(weight) for weight in weights / weights.sum()]


def gamma_traffic(
    rates_per_s: Sequence[float], cv: float, duration_s: float, patience_us: Sequence[int], seed: int
) -> Traffic:
    """Draw each model's requests by a Gamma process of its own."""
    rngs = [np.random.default_rng(part) for part in np.random.SeedSequence(seed).spawn(len(rates_per_s))]
    drawn = [GammaArrivals(rate, cv).times_s(duration_s, rng) for rate, rng in zip(rates_per_s, rngs, strict=True)]
    return Traffic.of_models([(1e6 * times).astype(np.int64) for times in drawn], patience_us)


def _parts(whole: int, count: int) -> tuple[int, ...]:
    return tuple(whole * (number + 1) // count - whole * number // count for number in range(count))
