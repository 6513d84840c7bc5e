"""Students of simulated hPLMs, which answer all requests in place of the upper layers."""

from __future__ import annotations

from dataclasses import dataclass

from backends.errors import InvalidArgumentError
from backends.stack_key import STUDENTS, StackKey
from backends.student_levels import MOST_STUDENTS
from builder.placement.simulated_job import ROOT, Depths

STUDENT_STACK = StackKey(ROOT.root, STUDENTS)


@dataclass(frozen=True)
class Students:
    """The students of all hPLMs.

    Attributes:
        most: Their number.
        depth: What one costs, as a share of the upper layers.
        count: How many answer every request; None leaves it to the load.
    """

    most: int
    depth: float
    count: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.most <= MOST_STUDENTS:
            raise InvalidArgumentError(f"a root has 1 to {MOST_STUDENTS} students, not {self.most}")
        if not 0 < self.depth * self.most <= 1:
            raise InvalidArgumentError(
                f"{self.most} students cost a share of the upper layers between 0 and 1, not {self.most * self.depth:g}"
            )
        if self.count is not None and not 1 <= self.count <= self.most:
            raise InvalidArgumentError(f"of {self.most} students 1 to {self.most} answer, not {self.count}")

    @property
    def choices(self) -> tuple[float, ...]:
        """What one student costs, what two do, and so on."""
        return tuple(count * self.depth for count in range(1, self.most + 1))

    @property
    def depths(self) -> Depths:
        least = self.choices[(self.count or 1) - 1]
        return Depths(least, least, self.choices[(self.count or self.most) - 1])
