"""The answers of one step of a ladder to labelled texts: how sure they are, and which are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.calibration import Bools, Floats, confidences, fit_temperature, labels_of
from builder.construct.tasks.objective import Objective


@dataclass(frozen=True, eq=False)
class StepAnswers:
    """Answers to rows; a row of words has one for each word.

    Shape: logits `[m, C]` of each row; labels `[m]` of each row, `NO_LABEL` where the task does not know it;
        is_right `[N]`, whether all of a row's entities are found and no others, or its label is
    """

    logits: Sequence[Tensor]
    labels: Sequence[Tensor]
    is_right: Bools

    @classmethod
    def of(cls, objective: Objective[Any], logits: Sequence[Tensor], targets: Sequence[Any]) -> StepAnswers:
        terms = objective.terms(logits, targets)
        is_right: Bools = (terms[:, :1] == terms[:, 1:]).all(axis=1)
        return cls(logits, [labels_of(target, objective.num_outputs) for target in targets], is_right)

    @classmethod
    def beside(cls, full: Sequence[Tensor], logits: Sequence[Tensor]) -> StepAnswers:
        """Take the full answers for the labels; a row is right if all its answers are those."""
        labels = [each.argmax(-1) for each in full]
        pairs = zip(logits, labels, strict=True)
        return cls(logits, labels, np.array([bool((each.argmax(-1) == known).all()) for each, known in pairs]))

    def temperature(self, rows: Indices) -> float:
        """Fit the temperature by the labels of some rows."""
        logits, labels = (torch.cat([each[row] for row in rows]) for each in (self.logits, self.labels))
        known = labels >= 0
        return fit_temperature(logits[known], labels[known])

    def confidence(self, temperature: float) -> Floats:
        """Return how sure each row's answer is; of words the least sure counts.

        Shape: `[N]`
        """
        sizes = np.array([len(row) for row in self.logits])
        least: Floats = np.ones(len(sizes))  # where there is no word, none is doubtful
        starts = np.cumsum([0, *sizes[:-1]])[sizes > 0]
        least[sizes > 0] = np.minimum.reduceat(confidences(torch.cat(list(self.logits)), temperature), starts)
        return least
