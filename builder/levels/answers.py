"""The answers of one step of a ladder to labelled texts: how sure they are, and which are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.engine.entities import served_tags
from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.calibration import Bools, Floats, confidences, fit_temperature, labels_of
from builder.construct.tasks.objective import Objective


@dataclass(frozen=True, eq=False)
class StepAnswers:
    """Answers to rows; a row of words has one for each word.

    Shape: logits `[m, C]` of each row; labels `[m]` of each row, `NO_LABEL` where the task does not know it;
        is_right `[N]`, whether all of a row's entities are found and no others, or its label is

    Attributes:
        tags: Of a task about words, by which entities are found.
    """

    logits: Sequence[Tensor]
    labels: Sequence[Tensor]
    is_right: Bools
    tags: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        objective: Objective[Any],
        logits: Sequence[Tensor],
        targets: Sequence[Any],
        tags: tuple[str, ...] | None = None,
    ) -> StepAnswers:
        terms = objective.terms(logits, targets)
        is_right: Bools = (terms[:, :1] == terms[:, 1:]).all(axis=1)
        return cls(logits, [labels_of(target, objective.num_outputs) for target in targets], is_right, tags)

    @classmethod
    def beside(
        cls, full: Sequence[Tensor], logits: Sequence[Tensor], tags: tuple[str, ...] | None = None
    ) -> StepAnswers:
        """Take the full answers for the labels; a row is right if it is served as those are."""
        answers = cls(logits, [each.argmax(-1) for each in full], np.ones(len(full), bool), tags)
        return replace(answers, is_right=~answers.differs(replace(answers, logits=full)))

    def differs(self, others: StepAnswers) -> Bools:
        """Return which rows are served otherwise than by other answers: `[N]`."""
        pairs = zip(self.logits, others.logits, strict=True)
        return np.array([bool((self._served(one) != self._served(other)).any()) for one, other in pairs], bool)

    def _served(self, logits: Tensor) -> npt.NDArray[np.int64]:
        """Return the label of a row, or the tags of its words: `[m]`."""
        if self.tags is not None:
            return served_tags(logits, self.tags)
        found: npt.NDArray[np.int64] = logits.argmax(-1).numpy()
        return found

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
