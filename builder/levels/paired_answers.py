"""Early and full answers to the same texts: how sure early ones are, and what they lose.

Usage:
    answers = LabelPairs(early, full, has_labels=True)
    temperature, of_full = answers.temperatures(some_rows)
    confidence, counted = answers.confidence(temperature), answers.counted(target)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from backends.adapters.ladder import Ensemble, Pruning
from backends.engine.early_numbers import losses, number_confidences
from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.calibration import TEMPERATURES, Bools, Floats, calibration_error
from builder.construct.tasks.objective import Objective
from builder.levels.answers import StepAnswers
from builder.levels.certificate import THRESHOLDS, Changes, Effect
from builder.levels.target import Target


class Counted(NamedTuple):
    """What a target counts of each row: if it leaves early, and if it stays; None where it then counts nothing.

    `changes` has to be for the better, if rows that stay are not answered in full.

    Shape: `[N]` each
    """

    leaving: Effect
    staying: Effect | None = None
    changes: Changes | None = None

    def of(self, rows: Indices) -> Counted:
        staying = None if self.staying is None else self.staying[rows]
        changes = None if self.changes is None else Changes(*(each[rows] for each in self.changes))
        return Counted(self.leaving[rows], staying, changes)


class PairedAnswers(Protocol):
    """Early and full answers to the same `[N]` rows."""

    in_parts: bool
    """Whether rows may be lost in part."""

    @property
    def ensemble(self) -> Ensemble | None:
        """What rows that go on are answered by; None where that is the full answer."""
        ...

    @property
    def pruning(self) -> Pruning | None:
        """Which words rows lose that go on; None where they keep all."""
        ...

    @property
    def first_threshold(self) -> float:
        """The threshold that certifying rows try first."""
        ...

    def kept_tokens(self, rows: Indices) -> float:
        """Return the share of the tokens of some rows that they keep if they go on."""
        ...

    def __len__(self) -> int: ...

    def temperatures(self, rows: Indices) -> tuple[float, float]:
        """Fit the temperatures of early and full answers by some rows."""
        ...

    def confidence(self, temperature: float) -> Floats:
        """Return how sure early answers are, `[N]`."""
        ...

    def counted(self, target: Target) -> Counted: ...

    @property
    def different(self) -> Bools | Floats:
        """How far early answers are from full ones, `[N]`."""
        ...

    def figures(self, rows: Indices, temperature: float) -> dict[str, float]:
        """Say how good answers to some rows are, whatever the threshold."""
        ...

    def as_served(self, rows: Indices, leaves: Bools) -> dict[str, float]:
        """Say how good answers to some rows are if these of them leave."""
        ...


class Mixture(NamedTuple):
    """Answers to rows that go on, mixed of both."""

    answers: StepAnswers
    ensemble: Ensemble


@dataclass(frozen=True, eq=False)
class Pruned:
    """Answers to rows that go on without some of their words.

    Attributes:
        first_threshold: What certifying rows try first: the more rows go on, the more are changed, so the strictest
            threshold need not be the safest one.

    Shape: lengths and kept `[N]`, tokens of each row, and those that it keeps
    """

    answers: StepAnswers
    pruning: Pruning
    lengths: Indices
    kept: Indices
    first_threshold: float


@dataclass(frozen=True, eq=False)
class LabelPairs:
    """Answers with labels; without labels of the rows, full answers stand for these.

    Attributes:
        mixture: What rows that go on are answered by; None where that are the full answers.
        pruned: The same, of rows that lose words.
    """

    early: StepAnswers
    full: StepAnswers
    has_labels: bool
    mixture: Mixture | None = None
    pruned: Pruned | None = None
    in_parts = False

    def __len__(self) -> int:
        return len(self.full.is_right)

    def temperatures(self, rows: Indices) -> tuple[float, float]:
        # Nothing says how sure full answers may be where no label does.
        return self.early.temperature(rows), self.full.temperature(rows) if self.has_labels else 1.0

    def confidence(self, temperature: float) -> Floats:
        return self.early.confidence(temperature)

    def counted(self, target: Target) -> Counted:
        going_on = self._going_on
        if target.loss == "agreement":
            return Counted(self.different, None if self.pruned is None else going_on.differs(self.full))
        if target.loss == "target-accuracy":
            return Counted(~self.early.is_right, ~going_on.is_right, self._changes)
        # What goes on adds nothing to a drop, unless it loses words: it is answered in full, or proven to be answered
        # better.
        staying = None if self.pruned is None else effect_of(self.full, going_on)
        return Counted(effect_of(self.full, self.early), staying, self._changes)

    @property
    def ensemble(self) -> Ensemble | None:
        return None if self.mixture is None else self.mixture.ensemble

    @property
    def pruning(self) -> Pruning | None:
        return None if self.pruned is None else self.pruned.pruning

    @property
    def first_threshold(self) -> float:
        return THRESHOLDS[0] if self.pruned is None else self.pruned.first_threshold

    def kept_tokens(self, rows: Indices) -> float:
        if self.pruned is None or not len(rows):
            return 1.0
        return float(self.pruned.kept[rows].sum() / self.pruned.lengths[rows].sum())

    @property
    def changes(self) -> Changes:
        """What becomes of rows that go on, against full answers."""
        going_on = self._going_on.is_right
        return Changes(going_on & ~self.full.is_right, self.full.is_right & ~going_on)

    @property
    def _going_on(self) -> StepAnswers:
        if self.pruned is not None:
            return self.pruned.answers
        return self.full if self.mixture is None else self.mixture.answers

    @property
    def _changes(self) -> Changes | None:
        return None if self.mixture is None else self.changes

    @property
    def different(self) -> Bools:
        return self.early.differs(self.full)

    def figures(self, rows: Indices, temperature: float) -> dict[str, float]:
        if not self.has_labels:
            return {}
        before, after = (self.confidence(each)[rows] for each in (1.0, temperature))
        is_right = self.early.is_right[rows]
        return {
            "full_accuracy": float(self.full.is_right[rows].mean()),
            "ece_before": calibration_error(before, is_right),
            "ece_after": calibration_error(after, is_right),
        }

    def as_served(self, rows: Indices, leaves: Bools) -> dict[str, float]:
        is_right = np.where(leaves, self.early.is_right[rows], self._going_on.is_right[rows])
        found = {"accuracy" if self.has_labels else "agreement": float(is_right.mean())}
        if self.pruned is not None:
            found |= {"alpha": self.pruned.pruning.alpha, "kept_tokens": self.kept_tokens(rows[~leaves])}
        if self.mixture is None:
            return found
        helped, harmed = (float(each[rows[~leaves]].sum()) for each in self.changes)
        return found | {"full_weight": self.mixture.ensemble.full_weight, "put_right": helped, "put_wrong": harmed}


def effect_of(full: StepAnswers, other: StepAnswers) -> Effect:
    """Return 1 for rows that other answers have wrong and full ones right, and -1 for the opposite."""
    effect: Effect = full.is_right.astype(np.int64) - other.is_right
    return effect


@dataclass(frozen=True, eq=False)
class NumberPairs:
    """Answers of a regression.

    Attributes:
        scale: The standard deviation of full answers, in which losses are counted.
        objective: Scores answers to rows whose true numbers are `targets`; None where nothing knows these.

    Shape: early `[N, 2]`, of students `[N, 1]`; full `[N, 1]`
    """

    early: Tensor
    full: Tensor
    scale: float
    objective: Objective[Any] | None
    targets: Sequence[Any]
    in_parts = True

    @property
    def ensemble(self) -> None:
        return None

    @property
    def pruning(self) -> None:
        return None

    @property
    def first_threshold(self) -> float:
        return THRESHOLDS[0]

    def kept_tokens(self, rows: Indices) -> float:
        return 1.0

    def __len__(self) -> int:
        return len(self.full)

    def temperatures(self, rows: Indices) -> tuple[float, float]:
        """Take the root of the mean square of errors over the deviations that were said to be likely."""
        errors = (self.early[rows, 0].double() - self.full[rows, 0].double()) / self.scale
        mean = (errors.square() / self.early[rows, 1].double().exp()).mean()
        return max(float(mean.sqrt()), TEMPERATURES[0]), 1.0

    def confidence(self, temperature: float) -> Floats:
        return number_confidences(self.early, np.full(len(self), temperature))

    def counted(self, target: Target) -> Counted:
        return Counted(self.different)

    @property
    def different(self) -> Floats:
        return losses(self.early, self.full, self.scale)

    def figures(self, rows: Indices, temperature: float) -> dict[str, float]:
        return {f"full_{name}": value for name, value in self._score(rows, self.full).items()}

    def as_served(self, rows: Indices, leaves: Bools) -> dict[str, float]:
        found = self.full.clone()
        left = rows[leaves]
        found[left, 0] = self.early[left, 0]
        return self._score(rows, found)

    def _score(self, rows: Indices, answers: Tensor) -> dict[str, float]:
        if self.objective is None:
            return {}
        terms = self.objective.terms(list(answers[rows, None]), [self.targets[row] for row in rows])
        return {self.objective.main_metric: float(self.objective.score(terms.sum(axis=0)))}
