"""Batches to measure: all sizes that an engine may run, spread evenly over their orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from backends.scheduling.settings import Capacity

_MIN_LENGTH = 3


@dataclass(frozen=True)
class PlannedBatch:
    """Rows of these lengths, for this many different hPLMs in turn; some may leave the layers early."""

    lengths: Sequence[int]
    adapters: int
    leaves: Sequence[bool]


def planned_batches(count: int, capacity: Capacity, max_length: int, seed: int) -> list[PlannedBatch]:
    """Within the capacity; the same for the same seed. Of a third of them no row leaves, of a third every row does."""
    rng = np.random.default_rng(seed)
    return [_planned(rng, capacity, max_length) for _ in range(count)]


def _planned(rng: np.random.Generator, capacity: Capacity, max_length: int) -> PlannedBatch:
    rows = _log_uniform(rng, 1, capacity.max_rows)
    typical = _log_uniform(rng, _MIN_LENGTH, max_length)
    spread = rng.uniform(0.0, 0.8)
    drawn = typical * np.exp(spread * rng.standard_normal(rows))
    lengths = np.clip(drawn.astype(int), min(_MIN_LENGTH, max_length), max_length)
    held = max(1, int(np.searchsorted(np.cumsum(lengths), capacity.max_tokens, side="right")))
    lengths = lengths[:held]
    adapters = _log_uniform(rng, 1, min(len(lengths), capacity.max_adapters))
    leaving = rng.choice([0.0, rng.uniform(), 1.0])
    return PlannedBatch(lengths.tolist(), adapters, (rng.random(len(lengths)) < leaving).tolist())


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return min(high, int(math.exp(rng.uniform(math.log(low), math.log(high + 1)))))
