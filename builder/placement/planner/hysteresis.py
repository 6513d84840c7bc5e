"""When a placement that is there makes room for another: not for every small gain, as moves cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.errors import InvalidArgumentError
from builder.placement.planner.change import Change
from builder.placement.planner.move_costs import MoveCosts


@dataclass(frozen=True)
class Hysteresis:
    """What a change has to gain.

    Attributes:
        window_s: For so long the next placement is to stand.
        costs: What moves take.
        least_points: Points more of the requests in time.
        least_return: How many times its cost the gain is to be.
    """

    window_s: float = 3_600.0
    costs: MoveCosts = field(default=MoveCosts())
    least_points: float = 1.0
    least_return: float = 2.0

    def __post_init__(self) -> None:
        if self.window_s <= 0:
            raise InvalidArgumentError("a placement that is to stand for no time gains nothing; give a longer --window")

    def gains(self, change: Change) -> bool:
        return change.gain_points >= self.least_points

    def pays(self, change: Change) -> bool:
        """Whether a change gains enough, also for what it costs."""
        return self.gains(change) and change.gain_requests >= self.least_return * change.cost_requests
