"""What the plan of a number of devices comes to, and whether it meets a target."""

from __future__ import annotations

from dataclasses import dataclass

from builder.placement.planner.placeable import NoRoomError
from builder.placement.planner.target import Target


@dataclass(frozen=True)
class Tried:
    """A number of devices, and the plan that was tried for them.

    Attributes:
        shares: On time, of the requests that the search saw, and of the held-out ones where there are some. Empty where
            a model has no room.
        missing: Names of the models that stand nowhere although requests ask for them.
        no_room: Why there is no plan; None where there is one.
    """

    count: int
    shares: tuple[float, ...] = ()
    missing: tuple[str, ...] = ()
    no_room: NoRoomError | None = None

    @property
    def judged(self) -> float:
        """The lower share."""
        return min(self.shares, default=0.0)

    def meets(self, target: Target) -> bool:
        return self.no_room is None and not self.missing and target.is_met_by(self.judged)
