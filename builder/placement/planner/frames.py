"""Ways to put devices into groups: all of one size, or, of few devices, every mixture of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby

from builder.placement.planner.group import Device
from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Frame

_FEW_DEVICES = 8
"""Of so many devices of one host all mixtures are tried: 22 of 8."""


def framings(problem: Problem, places: Sequence[int]) -> list[tuple[Frame, ...]]:
    """Return the ways to put some devices into groups; groups stay within a host."""
    hosts = by_host(problem.devices, places)
    if len(hosts) == 1 and len(places) <= _FEW_DEVICES:
        return [_cut(places, sizes) for sizes in _mixtures(len(places), problem.stage_counts)]
    sizes = [size for size in problem.stage_counts if size <= max(map(len, hosts))]
    return list(dict.fromkeys(by_size(problem, places, size) for size in sizes))


def by_size(problem: Problem, places: Sequence[int], size: int) -> tuple[Frame, ...]:
    """Cut devices into groups of one size within each host, and what is left over into smaller ones."""
    hosts = by_host(problem.devices, places)
    return tuple(frame for host in hosts for frame in _of_size(host, size, problem.stage_counts))


def single_frames(problem: Problem) -> tuple[Frame, ...]:
    """Return a group for each device."""
    return tuple(Frame((place,)) for place in range(len(problem.devices)))


def _of_size(places: Sequence[int], size: int, stage_counts: Sequence[int]) -> tuple[Frame, ...]:
    sizes = [size] * (len(places) // size)
    left = len(places) % size
    while left:
        sizes.append(max(count for count in stage_counts if count <= left))
        left -= sizes[-1]
    return _cut(places, sizes)


def _cut(places: Sequence[int], sizes: Sequence[int]) -> tuple[Frame, ...]:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return tuple(Frame(tuple(places[end - size : end])) for end, size in zip(ends, sizes, strict=True))


def by_host(devices: Sequence[Device], places: Sequence[int]) -> list[list[int]]:
    """Return the places of each host's devices, the largest devices first, so that groups are of like ones."""
    ordered = sorted(places, key=lambda place: (devices[place].host, -devices[place].memory_bytes, place))
    return [list(group) for _, group in groupby(ordered, key=lambda place: devices[place].host)]


@cache
def _mixtures(count: int, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return all ways to write a number as a sum of sizes, the largest first."""
    return tuple(_sums(count, tuple(sorted(sizes, reverse=True))))


def _sums(count: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if count == 0:
        yield ()
        return
    for number, size in enumerate(sizes):
        if size <= count:
            for rest in _sums(count - size, sizes[number:]):
                yield (size, *rest)
