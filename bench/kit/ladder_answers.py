"""The answers of a ladder's two steps to the same rows, and what is lost where some rows are answered early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from builder.construct.tasks.calibration import Bools, Floats
from builder.levels.answers import StepAnswers
from builder.levels.certificate import Effect
from builder.levels.paired_answers import effect_of


@dataclass(frozen=True)
class Ladder:
    """One early step and the full one, asked the same rows."""

    early: StepAnswers
    full: StepAnswers

    @classmethod
    def joined(cls, *parts: Ladder) -> Ladder:
        """Return the answers to the rows of all parts."""
        return cls(_joined([each.early for each in parts]), _joined([each.full for each in parts]))

    def drop(self, leaves: Bools) -> float:
        """Points of accuracy that are lost where these rows are answered early."""
        return 100 * float(self._lost(leaves).mean())

    def drop_error(self, leaves: Bools) -> float:
        """Return the standard error of the drop."""
        lost = self._lost(leaves)
        return 100 * float(lost.std()) / math.sqrt(len(lost))

    def _lost(self, leaves: Bools) -> Floats:
        return np.where(leaves, self.effect, 0.0)

    @property
    def effect(self) -> Effect:
        """What early answers are against full ones: 1 is harm, -1 help."""
        return effect_of(self.full, self.early)


def _joined(answers: Sequence[StepAnswers]) -> StepAnswers:
    logits = [row for each in answers for row in each.logits]
    labels = [row for each in answers for row in each.labels]
    return StepAnswers(logits, labels, np.concatenate([each.is_right for each in answers]), answers[0].tags)
