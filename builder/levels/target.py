"""What a tenant can bear: the one number that a ladder is chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from backends.errors import InvalidArgumentError
from builder.levels.certificate import least_rows
from builder.requests.levels import LadderTarget

Loss = Literal["max-drop", "target-accuracy", "agreement"]
DEFAULT_MAX_DROP = 1.0
DEFAULT_CERTAINTY = 0.9
DECLARED = "declared"
"""The figure of a version that holds its tenant's target, whether or not a ladder keeps it."""


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
    def requested(cls, request: LadderTarget, before: Target | None = None) -> Target:
        """Return the target of a request; one that names none means the target before it, or the default."""
        given = request.max_drop, request.target_accuracy, request.agreement
        certainty = DEFAULT_CERTAINTY if request.certainty is None else request.certainty
        if before is None or any(value is not None for value in given):
            return cls.of(*given, certainty)
        return before if request.certainty is None else replace(before, certainty=certainty)

    @classmethod
    def of_version(cls, figures: Mapping[str, Any]) -> Target | None:
        """Return the target that a version was made for, by its figures; None where there is none.

        Earlier releases wrote it only with a ladder, or not at all.
        """
        noted = figures.get(DECLARED) or figures.get("ladder", {})
        if "loss" not in noted:
            return None
        return cls(noted["loss"], noted["tolerance"], noted["certainty"])

    @property
    def noted(self) -> dict[str, Any]:
        """The target as figures of a version have it."""
        return {"target": self.shown, "loss": self.loss, "tolerance": self.tolerance, "certainty": self.certainty}

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
        return self.with_tolerance(self.tolerance)

    def with_tolerance(self, tolerance: float) -> str:
        """Say this kind of target with another tolerance."""
        if self.loss == "max-drop":
            return f"a drop of at most {100 * tolerance:g} points"
        named = "accuracy" if self.loss == "target-accuracy" else "agreement with the full answers"
        return f"{named} of at least {1 - tolerance:g}"


def check_target(request: LadderTarget) -> None:
    """Raise InvalidArgumentError where a request's target is none that a ladder could keep."""
    Target.requested(request)
