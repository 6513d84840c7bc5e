"""A placement on those of several like devices on which it moves least: search does not care which of them is which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TypeVar

from builder.placement.planner.problem import Problem
from builder.placement.planner.selection import Frame, Selection

_SAME_SHAPE = 0.01
"""Worth of the same shape where nothing else is alike."""

First = TypeVar("First")
Second = TypeVar("Second")


def aligned(problem: Problem, found: Selection, before: Selection) -> Selection:
    """Return the placement with its hosts and groups where those before are most like them.

    Pairs are made greedily: hosts of the same devices, then within these groups of the same shape.
    """
    hosts = _hosts(problem)
    after_of, before_of = _by_host(problem, found), _by_host(problem, before)
    kinds: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for host, places in hosts.items():
        kinds[tuple(sorted(problem.devices[place].memory_bytes for place in places))].append(host)
    moved: dict[int, int] = {}
    for alike in kinds.values():
        for host, other in _paired(alike, alike, lambda a, b: _likeness_of(problem, after_of[a], before_of[b])):
            moved |= _moved(problem, after_of[host], before_of[other], hosts[other])
    return found.on(moved)


_Placed = tuple[Frame, frozenset[int]]


def _hosts(problem: Problem) -> Mapping[str, list[int]]:
    hosts: defaultdict[str, list[int]] = defaultdict(list)
    for place, device in enumerate(problem.devices):
        hosts[device.host].append(place)
    return hosts


def _by_host(problem: Problem, selection: Selection) -> Mapping[str, list[_Placed]]:
    found: defaultdict[str, list[_Placed]] = defaultdict(list)
    for frame, held in zip(selection.frames, selection.held, strict=True):
        found[problem.devices[frame.devices[0]].host].append((frame, held))
    return found


def _likeness_of(problem: Problem, after: Sequence[_Placed], before: Sequence[_Placed]) -> float:
    return sum(_likeness(problem, *pair) for pair in _groups_paired(problem, after, before))


def _groups_paired(
    problem: Problem, after: Sequence[_Placed], before: Sequence[_Placed]
) -> list[tuple[_Placed, _Placed]]:
    return _paired(after, before, lambda one, other: _likeness(problem, one, other))


def _likeness(problem: Problem, one: _Placed, other: _Placed) -> float:
    """Return 2 for groups that hold the same, less for others, 0 for groups of different shapes or devices."""
    memory = [[problem.devices[place].memory_bytes for place in frame.devices] for frame, _ in (one, other)]
    if memory[0] != memory[1]:
        return 0.0
    if one[1] == other[1]:
        return 2.0
    both, all_bytes = (_bytes(problem, models) for models in (one[1] & other[1], one[1] | other[1]))
    return _SAME_SHAPE + both / max(1, all_bytes)


def _bytes(problem: Problem, models: frozenset[int]) -> int:
    return sum(problem.models[model].size_bytes for model in models)


def _paired(
    firsts: Sequence[First], seconds: Sequence[Second], likeness: Callable[[First, Second], float]
) -> list[tuple[First, Second]]:
    """Pair the most alike first, until one side has none left."""
    scored = [
        (-likeness(first, second), number, other)
        for (number, first), (other, second) in product(enumerate(firsts), enumerate(seconds))
    ]
    left, right = set(range(len(firsts))), set(range(len(seconds)))
    found = []
    for _, number, other in sorted(scored):
        if number in left and other in right:
            left.remove(number)
            right.remove(other)
            found.append((firsts[number], seconds[other]))
    return found


def _moved(
    problem: Problem, after: Sequence[_Placed], before: Sequence[_Placed], places: Sequence[int]
) -> dict[int, int]:
    """Return the device of each device of a host's groups."""
    free, moved = list(places), dict[int, int]()
    pairs = [(one, other) for one, other in _groups_paired(problem, after, before) if _likeness(problem, one, other)]
    for (frame, _), (other, _) in pairs:
        moved |= dict(zip(frame.devices, other.devices, strict=True))
    free = [place for place in free if place not in moved.values()]
    for frame, _ in after:
        for place in frame.devices:
            if place not in moved:
                memory = problem.devices[place].memory_bytes
                moved[place] = next(each for each in free if problem.devices[each].memory_bytes == memory)
                free.remove(moved[place])
    return moved
