"""Which models fit on any group of the devices at all, alone."""

from __future__ import annotations

from backends.errors import InvalidArgumentError, shown
from builder.placement.planner.frames import by_size
from builder.placement.planner.problem import Problem
from builder.placement.planner.room import Room
from builder.placement.planner.selection import Frame


class NoRoomError(InvalidArgumentError):
    """A model that is asked for fits on no group of the devices."""


def placeable(problem: Problem) -> frozenset[int]:
    """Return the numbers of the models that some group of the devices has room for."""
    frames: list[Frame] = []
    for size in problem.stage_counts:
        frames += by_size(problem, range(len(problem.devices)), size)
    room = Room(problem, frames)
    return frozenset(number for number in range(len(problem.models)) if room.fits(number).any())


def require_places(problem: Problem) -> None:
    """Reject a problem with a model that is asked for and fits on no group of its devices, even alone.

    Raises:
        NoRoomError: There is such a model; the message says what it takes and what there is.
    """
    fitting = placeable(problem)
    for number, model in enumerate(problem.models):
        if problem.demand[number] and number not in fitting:
            largest = max(device.memory_bytes for device in problem.devices)
            raise NoRoomError(
                f"root {shown(model.name)} takes {model.size_bytes:,} bytes and fits on no group of these devices, of "
                f"which the largest has {largest:,}"
            )
