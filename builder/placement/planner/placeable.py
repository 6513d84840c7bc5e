"""Which models fit on any group of the devices at all, alone."""

from __future__ import annotations

from builder.placement.planner.frames import by_size
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selection import Frame


def placeable(problem: Problem) -> frozenset[int]:
    """Return the numbers of the models that some group of the devices has room for."""
    frames: list[Frame] = []
    for size in problem.stage_counts:
        frames += by_size(problem, range(len(problem.devices)), size)
    room = Room(problem, frames)
    return frozenset(number for number in range(len(problem.models)) if room.fits(number).any())
