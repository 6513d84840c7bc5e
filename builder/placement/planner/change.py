"""How one placement becomes another: steps, each of one host, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from backends.errors import InvalidArgumentError, shown
from backends.storage import json_checksum
from builder.placement.planner.group import Group
from builder.placement.planner.move_costs import MoveCosts


@dataclass(frozen=True)
class Step:
    """What is done on one host before anything else is done.

    Attributes:
        host: Whose devices they are.
        stops: Names of the groups that end; their devices are those of `groups`, or are left idle.
        groups: Groups as they are after the step. One whose name was there before has the same devices and shape, and
            holds other stacks.
        takes_s: For so long these groups answer nothing.
        cost_requests: Requests that may be late meanwhile.
        interrupts: Stacks, as `root` or `root/level`, that stand on no group meanwhile.
    """

    host: str
    stops: tuple[str, ...]
    groups: tuple[Group, ...]
    takes_s: float
    cost_requests: float = 0.0
    interrupts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.stops and not self.groups:
            raise InvalidArgumentError(f"a step on host {shown(self.host)} changes nothing")
        if doubled := {group.name for group in self.groups} & set(self.stops):
            raise InvalidArgumentError(f"a step stops and has group {shown(min(doubled))}")

    def after(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """Return the groups that there are after the step, if these were there before."""
        changed = {group.name for group in self.groups} | set(self.stops)
        return (*(group for group in groups if group.name not in changed), *self.groups)


@dataclass(frozen=True)
class Moves:
    """How many moves of each kind a change has.

    Attributes:
        loads: Stacks onto groups that did not hold them; a group that is new holds none.
        reloads: Groups that stay and hold other stacks.
        reshapes: Groups whose devices stood otherwise before.
        hplms: hPLMs of the traffic that another group is likely to answer: of a stack whose groups change, the share
            that a consistent hash deals to others.
    """

    loads: int
    reloads: int
    reshapes: int
    hplms: int


@dataclass(frozen=True)
class Change:
    """From the placement before to the plan, one step after the other; none where the placement before stays.

    Attributes:
        previous: `groups_checksum` of the groups that the first step is to find.
        window_s: For so long the gain counts.
        gain_points: Points more of the requests that are in time, of those that no search has seen.
        gain_requests: Requests more in time within the window.
        cost_requests: Requests that the moves may make late.
        moves: Those of the best placement that was found, made or not.
    """

    previous: str
    window_s: float
    gain_points: float
    gain_requests: float
    cost_requests: float
    moves: Moves
    costs: MoveCosts
    steps: tuple[Step, ...]


def groups_checksum(groups: Sequence[Group]) -> str:
    """Name a placement by its groups, in whatever order they are."""
    return json_checksum({"groups": [asdict(group) for group in sorted(groups, key=lambda group: group.name)]})
