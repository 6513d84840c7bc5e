"""The best placement of a few models on a few like devices, by trying all: what a search is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement, groupby, product

from backends.errors import InvalidArgumentError
from builder.placement.planner.frames import framings
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selecting import Selected, Selector
from builder.placement.planner.selection import Frame, Selection

MOST_MODELS, MOST_DEVICES = 3, 4


def optimum(problem: Problem, covers: bool = True) -> Selected:
    """Play every way to put devices into groups and models on them; those that differ in names only once.

    Raises:
        InvalidArgumentError: There are too many models or devices, or devices that differ.
    """
    if len(problem.models) > MOST_MODELS or len(problem.devices) > MOST_DEVICES:
        most = f"{MOST_MODELS} models and {MOST_DEVICES} devices"
        raise InvalidArgumentError(f"the optimum is searched for {most} at most")
    if len({(device.memory_bytes, device.host) for device in problem.devices}) > 1:
        raise InvalidArgumentError("the optimum is searched for like devices of one host")
    selector = Selector(problem, range(len(problem.models)), problem.traffic, covers)
    selections = (
        selection
        for frames in framings(problem, range(len(problem.devices)))
        for selection in _selections(problem, frames)
    )
    return max((selector.judged(each) for each in selections), key=lambda each: each.score)


def _selections(problem: Problem, frames: Sequence[Frame]) -> Iterator[Selection]:
    """Yield what groups can hold; groups of one size are alike, so the order among them does not matter."""
    per_size = []
    for _, alike in groupby(frames, key=lambda frame: frame.num_stages):
        like = [*alike]
        per_size.append(combinations_with_replacement(_fitting(problem, like[0]), len(like)))
    for choice in product(*per_size):
        yield Selection(tuple(frames), tuple(held for of_size in choice for held in of_size))


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
