"""What a tenant can bear: the one number that a ladder is chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from backends.errors import InvalidArgumentError
from builder.levels.certificate import least_rows

Loss = Literal["max-drop", "target-accuracy", "agreement"]
DEFAULT_MAX_DROP = 1.0
DEFAULT_CERTAINTY = 0.9


@dataclass(frozen=True)
class Target:
    """What the answers of a ladder may lose, and how certain that is.

    Attributes:
        loss: What is counted: rows that full has right and the ladder wrong, rows that the ladder has wrong, or rows
            that it answers otherwise than full.
        tolerance: The largest share of such rows.
        certainty: How likely the promise holds.
    """

    loss: Loss
    tolerance: float
    certainty: float = DEFAULT_CERTAINTY

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise InvalidArgumentError(f"{self.shown} leaves no share of rows between 0 and 1 that may be lost")
        if not 0.5 <= self.certainty < 1:
            raise InvalidArgumentError(f"a certainty is at least 0.5 and below 1, not {self.certainty}")

    @classmethod
    def of(
        cls,
        max_drop: float | None = None,
        target_accuracy: float | None = None,
        agreement: float | None = None,
        certainty: float = DEFAULT_CERTAINTY,
    ) -> Target:
        """Make the target that is given; by default, one point may be lost."""
        given = {"max_drop": max_drop, "target_accuracy": target_accuracy, "agreement": agreement}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidArgumentError(f"one target at a time, not {' and '.join(named)}")
        if any(value is not None and not math.isfinite(value) for value in given.values()):
            raise InvalidArgumentError(f"{named[0]} must be a number")
        if target_accuracy is not None:
            return cls("target-accuracy", 1 - target_accuracy, certainty)
        if agreement is not None:
            return cls("agreement", 1 - agreement, certainty)
        return cls("max-drop", (DEFAULT_MAX_DROP if max_drop is None else max_drop) / 100, certainty)

    @classmethod
    def of_ladder(cls, certified: Mapping[str, Any]) -> Target | None:
        """Return the target that a ladder was selected for; None where an earlier release selected it."""
        if "loss" not in certified:
            return None
        return cls(certified["loss"], certified["tolerance"], certified["certainty"])

    @property
    def risk(self) -> float:
        return 1 - self.certainty

    @property
    def least_rows(self) -> int:
        return least_rows(self.tolerance, self.risk)

    @property
    def options(self) -> str:
        """The options of `hplm select` that mean this target."""
        amount = 100 * self.tolerance if self.loss == "max-drop" else 1 - self.tolerance
        return f"--{self.loss} {amount:g} --certainty {self.certainty:g}"

    @property
    def shown(self) -> str:
        if self.loss == "max-drop":
            return f"a drop of at most {100 * self.tolerance:g} points"
        named = "accuracy" if self.loss == "target-accuracy" else "agreement with the full answers"
        return f"{named} of at least {1 - self.tolerance:g}"
