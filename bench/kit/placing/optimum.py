"""The best placement of a few models on a few devices, by trying all: what a search is measured against.

The order of groups counts: of two that are free, the first one answers. So does the order of a group's devices, where
these have unlike memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product

from backends.errors import InvalidArgumentError
from builder.placement.planner.group_simulator import PlacedGroup
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selecting import Selected, Selector
from builder.placement.planner.selection import Frame, Selection

MOST_MODELS, MOST_DEVICES = 3, 4


def optimum(problem: Problem) -> Selected:
    """Play every way to put devices into groups and models on them; of those that a simulation cannot tell apart one.

    Raises:
        InvalidArgumentError: There are too many models or devices.
    """
    if len(problem.models) > MOST_MODELS or len(problem.devices) > MOST_DEVICES:
        most = f"{MOST_MODELS} models and {MOST_DEVICES} devices"
        raise InvalidArgumentError(f"the optimum is searched for {most} at most")
    selector = Selector(problem, range(len(problem.models)), problem.traffic)
    return max((selector.judged(each) for each in _selections(problem)), key=lambda each: each.score)


def _selections(problem: Problem) -> Iterator[Selection]:
    """Yield one selection of each sequence of groups with models: nothing else of it is played."""
    seen: set[tuple[PlacedGroup, ...]] = set()
    for frames in _framings(problem):
        for held in product(*(_fitting(problem, frame) for frame in frames)):
            selection = Selection(frames, held)
            played = tuple(group for group in selection.groups if group.models)
            if played not in seen:
                seen.add(played)
                yield selection


def _framings(problem: Problem) -> Iterator[tuple[Frame, ...]]:
    """Yield the groups of devices in each order; of those that have the same memory, stage by stage, the first."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for order in permutations(range(len(problem.devices))):
        for frames in _cuts(problem, order):
            memory = tuple(tuple(problem.devices[place].memory_bytes for place in frame.devices) for frame in frames)
            if memory not in seen:
                seen.add(memory)
                yield frames


def _cuts(problem: Problem, order: Sequence[int]) -> Iterator[tuple[Frame, ...]]:
    """Yield the ways to cut a sequence of devices into groups, each within a host."""
    if not order:
        yield ()
    for size in problem.stage_counts:
        first = order[:size]
        if len(first) == size and len({problem.devices[place].host for place in first}) == 1:
            for rest in _cuts(problem, order[size:]):
                yield (Frame(tuple(first)), *rest)


def _fitting(problem: Problem, frame: Frame) -> list[frozenset[int]]:
    models = range(len(problem.models))
    subsets = (subset for count in range(len(models) + 1) for subset in combinations(models, count))
    return [frozenset(subset) for subset in subsets if _fits(problem, frame, subset)]


def _fits(problem: Problem, frame: Frame, models: Sequence[int]) -> bool:
    room = Room(problem, [frame])
    for model in models:
        if not room.fits(model)[0]:
            return False
        room.take(model, 0)
    return True
