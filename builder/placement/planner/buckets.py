"""Buckets of models that may wait for each other, and ways to deal the devices to them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np

from builder.placement.planner.problem import Problem

_MOST_DIFFERENCE = 0.38
"""AlpaServe's: short requests are not to queue behind much longer ones."""
_TOLERANCES = (1.0, 0.5, 0.3, 0.2, 0.1)
_MOST_DEALS = 24

Bucket = tuple[int, ...]


@dataclass(frozen=True)
class Convoy:
    """Two models that must not share a device: a full batch of one takes most of what the other's requests have."""

    long: int
    short: int


def bucketings(problem: Problem) -> list[tuple[Bucket, ...]]:
    """Return the ways to cut the models into buckets: all in one, and the fewest whose models do not differ much."""
    ordered = sorted(range(len(problem.models)), key=lambda model: (problem.models[model].alone_us, model))
    patience = shortest_patience_us(problem)
    ways = [(tuple(ordered),), _fewest(problem, ordered, patience)]
    ways.append(tuple(reversed(_fewest(problem, ordered[::-1], patience))))
    return list(dict.fromkeys(tuple(tuple(sorted(bucket)) for bucket in way) for way in ways))


def convoys(problem: Problem) -> list[Convoy]:
    patience = shortest_patience_us(problem)
    models = range(len(problem.models))
    return [Convoy(a, b) for a in models for b in models if a != b and _is_convoy(problem, patience, a, b)]


def shortest_patience_us(problem: Problem) -> Sequence[float]:
    """Return the shortest time that each model's requests have; infinite for models without traffic."""
    shortest = np.full(len(problem.models), np.inf)
    np.minimum.at(shortest, problem.traffic.models, problem.traffic.deadlines_us - problem.traffic.arrived_us)
    return [float(each) for each in shortest]


def deals(demands: Sequence[float], num_devices: int) -> list[tuple[int, ...]]:
    """Return the ways to deal devices to buckets, each at least one, that are not far from the buckets' demands.

    The tolerance falls until few enough are left; of too many within the smallest one, the nearest are taken. These
    are made directly: of 16 buckets on 64 devices there are more than could be gone through.
    """
    if num_devices < len(demands):
        return []
    total = sum(demands)
    shares = [each / total if total else 1 / len(demands) for each in demands]
    found: list[tuple[int, ...]] = []
    for tolerance in _TOLERANCES:
        ranges = [_range(share, num_devices, tolerance) for share in shares]
        found = list(islice(_sums(ranges, num_devices), _MOST_DEALS + 1)) or found[:_MOST_DEALS]
        if len(found) <= _MOST_DEALS:
            return found
    near = _neighbours(_nearest(shares, num_devices))
    return heapq.nsmallest(_MOST_DEALS, near, key=lambda deal: _distance(deal, shares, num_devices))


def _nearest(shares: Sequence[float], num_devices: int) -> tuple[int, ...]:
    """Deal one device to each bucket, and then each further one to the bucket that lacks most."""
    deal = [1] * len(shares)
    for _ in range(num_devices - len(shares)):
        lacks = [share * num_devices - count for share, count in zip(shares, deal, strict=True)]
        deal[lacks.index(max(lacks))] += 1
    return tuple(deal)


def _neighbours(deal: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield a deal, and those in which one device is another bucket's."""
    yield deal
    for giver, taker in permutations(range(len(deal)), 2):
        if deal[giver] > 1:
            yield tuple(count + (each == taker) - (each == giver) for each, count in enumerate(deal))


def _range(share: float, total: int, tolerance: float) -> range:
    return range(max(1, math.ceil((share - tolerance) * total)), max(1, math.floor((share + tolerance) * total)) + 1)


def _sums(ranges: Sequence[range], left: int) -> Iterator[tuple[int, ...]]:
    """Yield a number of each range, so that they add up to what is left."""
    if not ranges:
        if not left:
            yield ()
        return
    for count in ranges[0]:
        if count > left - (len(ranges) - 1):
            return
        for others in _sums(ranges[1:], left - count):
            yield (count, *others)


def _distance(deal: Sequence[int], shares: Sequence[float], num_devices: int) -> float:
    return max(abs(count / num_devices - share) for count, share in zip(deal, shares, strict=True))


def _fewest(problem: Problem, ordered: Sequence[int], patience: Sequence[float]) -> tuple[Bucket, ...]:
    """Fill one bucket after the other, in an order by time."""
    buckets: list[list[int]] = []
    for model in ordered:
        if buckets and not any(_must_part(problem, patience, model, other) for other in buckets[-1]):
            buckets[-1].append(model)
        else:
            buckets.append([model])
    return tuple(map(tuple, buckets))


def _must_part(problem: Problem, patience: Sequence[float], one: int, other: int) -> bool:
    shorter_us, longer_us = sorted((problem.models[one].alone_us, problem.models[other].alone_us))
    if 1 - shorter_us / longer_us > _MOST_DIFFERENCE:
        return True
    return _is_convoy(problem, patience, one, other) or _is_convoy(problem, patience, other, one)


def _is_convoy(problem: Problem, patience: Sequence[float], long: int, short: int) -> bool:
    return problem.models[long].full_batch_us > patience[short] / 2
