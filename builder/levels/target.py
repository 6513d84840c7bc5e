"""What a tenant can bear: the one number that a ladder is chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from backends.errors import InvalidArgumentError
from backends.wire import MAX_DEADLINE_MS
from builder.levels.guarantee import Each, EachInParts, EachOnBalance, Fleet, Guarantee
from builder.requests.levels import GuaranteeName, LadderTarget, LateName

Loss = Literal["max-drop", "target-accuracy", "agreement"]
DEFAULT_MAX_DROP = 1.0
DEFAULT_CERTAINTY = 0.9
DECLARED = "declared"
"""The figure of a version that holds its tenant's target, whether or not a ladder keeps it."""
LADDER = "ladder"
"""The figure of a version that holds what was certified of its ladder."""
_OF_TIME: Mapping[str, Any] = {"deadline_ms": None, "default_deadline": False, "late": "settle"}
"""What a target says of deadlines, and the defaults; a figure of a version only where it is another."""
_TIMES_FOR_BALANCE = 5
"""So many times the rows by which one candidate could prove a drop at all. How many candidates there are does not
count: one more changes no other's test. With fewer rows a count of harm proves as much. Of 1,500 rows 8 may be harmed
for a point at a risk of 0.05; on balance 13 if 11 are put right, and 7 if none is."""
_FLEET_BOUNDS_LOSSES = "the guarantee fleet bounds what is lost against all layers (max drop, agreement)"


@dataclass(frozen=True)
class Target:
    """What the answers of a ladder may lose, and how certain that is.

    Attributes:
        loss: What is counted: rows that full has right and the ladder wrong, rows that the ladder has wrong, or rows
            that it answers otherwise than full. Of a regression, for the first and the last of these: how far its
            numbers are from those of full, in standard deviations of these.
        tolerance: The largest share of such rows.
        certainty: How likely the promise holds, if each hPLM is to keep it.
        guarantee: Whether each hPLM is to keep it, or the fleet in the mean.
        deadline_ms: Of most requests; where all layers would miss it under load, the ladder has to be able to settle.
        default_deadline: Whether it is the deadline of requests that name none.
        late: Whether a row that all layers would answer too late settles for a doubtful answer, or is rejected.
    """

    loss: Loss
    tolerance: float
    certainty: float = DEFAULT_CERTAINTY
    guarantee: GuaranteeName = "each"
    deadline_ms: float | None = None
    default_deadline: bool = False
    late: LateName = "settle"

    def __post_init__(self) -> None:
        if not 0 < self.tolerance < 1:
            raise InvalidArgumentError(f"{self.shown} leaves no share of rows between 0 and 1 that may be lost")
        if not 0.5 <= self.certainty < 1:
            raise InvalidArgumentError(f"a certainty is at least 0.5 and below 1, not {self.certainty}")
        if self.deadline_ms is not None and not 0 < self.deadline_ms < math.inf:
            raise InvalidArgumentError(f"a deadline is a number of milliseconds above 0, not {self.deadline_ms:g}")
        if self.default_deadline and self.deadline_ms is None:
            raise InvalidArgumentError("a default deadline needs its length: --deadline-ms, or deadline_ms")
        if self.default_deadline and self.deadline_ms is not None and not 1 <= self.deadline_ms <= MAX_DEADLINE_MS:
            limits = f"1 to {MAX_DEADLINE_MS} milliseconds, as those that requests name"
            raise InvalidArgumentError(f"a default deadline is {limits}, not {self.deadline_ms:g}")
        if self.guarantee == "fleet" and self.loss == "target-accuracy":
            raise InvalidArgumentError(f"{self.with_tolerance(self.tolerance)} is no target: {_FLEET_BOUNDS_LOSSES}")

    @classmethod
    def of(
        cls,
        max_drop: float | None = None,
        target_accuracy: float | None = None,
        agreement: float | None = None,
        certainty: float | None = None,
        guarantee: GuaranteeName = "each",
        deadline_ms: float | None = None,
        default_deadline: bool = False,
        late: LateName = "settle",
    ) -> Target:
        """Make the target that is given; by default, one point may be lost."""
        kept = _certainty(guarantee, certainty, DEFAULT_CERTAINTY), guarantee, deadline_ms, default_deadline, late
        given = {"max_drop": max_drop, "target_accuracy": target_accuracy, "agreement": agreement}
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise InvalidArgumentError(f"one target at a time, not {' and '.join(named)}")
        if any(value is not None and not math.isfinite(value) for value in given.values()):
            raise InvalidArgumentError(f"{named[0]} must be a number")
        if target_accuracy is not None:
            return cls("target-accuracy", 1 - target_accuracy, *kept)
        if agreement is not None:
            return cls("agreement", 1 - agreement, *kept)
        return cls("max-drop", (DEFAULT_MAX_DROP if max_drop is None else max_drop) / 100, *kept)

    @classmethod
    def requested(cls, request: LadderTarget, before: Target | None = None) -> Target:
        """Return the target of a request; one that names none means the target before it, or the default."""
        given = request.max_drop, request.target_accuracy, request.agreement
        of_time = _of_time(request, before)
        kept = before or cls.of()
        # Of an accuracy there is no mean over the fleet; each hPLM is promised more.
        guarantee = request.guarantee or ("each" if request.target_accuracy is not None else kept.guarantee)
        certainty = _certainty(guarantee, request.certainty, kept.certainty)
        loss = cls.of(*given) if any(value is not None for value in given) else kept
        return replace(loss, certainty=certainty, guarantee=guarantee, **of_time)

    @classmethod
    def of_version(cls, figures: Mapping[str, Any]) -> Target | None:
        """Return the target that a version was made for, by its figures; None where there is none.

        Earlier releases wrote it only with a ladder, or not at all.
        """
        noted = figures.get(DECLARED) or figures.get(LADDER, {})
        if "loss" not in noted:
            return None
        later = {name: noted[name] for name in ("guarantee", *_OF_TIME) if name in noted}
        return cls(noted["loss"], noted["tolerance"], noted["certainty"], **later)

    @property
    def noted(self) -> dict[str, Any]:
        """The target as figures of a version have it."""
        return {
            "target": self.shown,
            "loss": self.loss,
            "tolerance": self.tolerance,
            "certainty": self.certainty,
            "guarantee": self.guarantee,
            **{name: value for name, default in _OF_TIME.items() if (value := getattr(self, name)) != default},
        }

    @property
    def risk(self) -> float:
        return 1 - self.certainty

    def tested(self, in_parts: bool = False, num_candidates: int = 1, rows: int = 0) -> Guarantee:
        """Return what each of some ladders for this target has to pass, of which the best one is taken.

        Args:
            in_parts: Whether rows may be lost in part, as those of a regression.
            num_candidates: How many ladders there are; the risk is divided among them.
            rows: How many test them; of a drop, many can prove more by what is put right than by harm alone.
        """
        if self.guarantee == "fleet":
            return Fleet(num_candidates)
        risk = self.risk / num_candidates
        if in_parts:
            return EachInParts(risk)
        is_balanced = self.loss == "max-drop" and rows >= _TIMES_FOR_BALANCE * Each(self.risk).least_rows(
            self.tolerance
        )
        return EachOnBalance(risk) if is_balanced else Each(risk)

    @property
    def options(self) -> str:
        """The options of `hplm select` that mean this target."""
        amount = 100 * self.tolerance if self.loss == "max-drop" else 1 - self.tolerance
        kept = "--guarantee fleet" if self.guarantee == "fleet" else f"--certainty {self.certainty:g}"
        deadline = "" if self.deadline_ms is None else f" --deadline-ms {self.deadline_ms:g}"
        default_deadline = " --default-deadline" if self.default_deadline else ""
        late = "" if self.late == "settle" else f" --late {self.late}"
        return f"--{self.loss} {amount:g} {kept}{deadline}{default_deadline}{late}"

    @property
    def shown(self) -> str:
        return self.with_tolerance(self.tolerance)

    @property
    def promise(self) -> str:
        """The target, and how likely it is kept where that is part of it."""
        return self.shown if self.guarantee == "fleet" else f"{self.shown} with certainty {self.certainty:g}"

    def with_tolerance(self, tolerance: float) -> str:
        """Say this kind of target with another tolerance."""
        of_whom = " in the mean of the fleet" if self.guarantee == "fleet" else ""
        if self.loss == "max-drop":
            return f"a drop of at most {100 * tolerance:g} points{of_whom}"
        named = "accuracy" if self.loss == "target-accuracy" else "agreement with the full answers"
        return f"{named} of at least {1 - tolerance:g}{of_whom}"


def check_target(request: LadderTarget, goes_on: bool = False) -> None:
    """Raise InvalidArgumentError where a request's target is none that a ladder could keep.

    Args:
        request: The request.
        goes_on: What it leaves open is as in the version before, whose deadline may be the default one.
    """
    if goes_on and request.deadline_ms is None:
        request = request.model_copy(update={"default_deadline": None})
    Target.requested(request)


def _of_time(request: LadderTarget, before: Target | None) -> dict[str, Any]:
    """Return what a request says of deadlines; what it leaves open is as before, or the default."""
    otherwise = _OF_TIME if before is None else {name: getattr(before, name) for name in _OF_TIME}
    given = {name: getattr(request, name) for name in _OF_TIME}
    return {name: otherwise[name] if value is None else value for name, value in given.items()}


def _certainty(guarantee: GuaranteeName, given: float | None, otherwise: float) -> float:
    """Return the certainty that is given; a mean over the fleet has none to give."""
    if given is None:
        return otherwise
    if guarantee == "fleet":
        raise InvalidArgumentError("a certainty is of each hPLM; the guarantee fleet promises a mean, and takes none")
    return given
