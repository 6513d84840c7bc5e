"""A task's part in the tuning of its model: what the loss compares, and the figures that it is judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from backends.root.words import RowWords
from builder.construct.tasks.metrics import Floats

TargetT = TypeVar("TargetT")
NO_SCALE = (0.0, 1.0)


class Objective(ABC, Generic[TargetT]):
    """One task; a `TargetT` is what it knows of one row.

    Shape:
        A model's outputs are `[B, C]`, or `[B, L, C]` where the task is about words; of each row the task looks at
        `[m, C]`, a line for each answer: m is 1, or the number of words. A teacher gives the same of each row.
    """

    main_metric: ClassVar[str]
    about_words: ClassVar[bool] = False
    about_pairs: bool = False
    learns_states: ClassVar[bool] = True
    """Whether a pupil does better to learn what its teacher's head reads, besides what that answers."""
    num_outputs: int
    scale: tuple[float, float] = NO_SCALE
    """(offset, factor) that the model's raw outputs are brought to the task's own scale with."""

    @abstractmethod
    def targets(self, examples: Sequence[Any], words: Sequence[RowWords | None]) -> list[TargetT]: ...

    def rows(self, outputs: Tensor, targets: Sequence[TargetT]) -> list[Tensor]:
        """A batch's outputs → `[m, C]` for each row."""
        return list(outputs[:, None])

    @abstractmethod
    def hard_loss(self, answers: Tensor, targets: Sequence[TargetT], label_smoothing: float) -> Tensor:
        """Compute the distance of all rows' answers `[M, C]` from the true ones."""

    @abstractmethod
    def soft_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        """Compute the distance of the answers from a teacher's."""

    @abstractmethod
    def terms(self, outputs: Sequence[Tensor], targets: Sequence[TargetT]) -> Floats:
        """Return what the main metric adds up of each row; `score` makes the metric of the sums.

        Shape: `[N, K]`, K depending on the task
        """

    @abstractmethod
    def score(self, sums: Floats) -> Floats:
        """Compute the main metric of sums of `terms`.

        Shape: `[..., K]` → `[...]`
        """

    @abstractmethod
    def metrics(self, outputs: Sequence[Tensor], targets: Sequence[TargetT]) -> dict[str, float]:
        """Figures over a whole file, of each row's `[m, C]`."""


def distribution_distance(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy with the teacher's distribution, both softened.

    Semantics:
        -T² · mean over rows of Σ_c softmax(teacher / T)_c · log softmax(logits / T)_c
    """
    wanted = torch.softmax(teacher / temperature, dim=-1)
    return temperature**2 * functional.cross_entropy(logits / temperature, wanted)


def cross_entropy(answers: Tensor, wanted: Tensor, weights: Tensor | None, label_smoothing: float) -> Tensor:
    """Cross-entropy in which each row counts as much as its class; a row whose class is below 0 counts nothing.

    Where it smooths labels, PyTorch's own weighs each class of every row: a rare class would be taught to all rows.
    """
    if weights is None:
        return functional.cross_entropy(answers, wanted, label_smoothing=label_smoothing)
    each = functional.cross_entropy(answers, wanted, reduction="none", label_smoothing=label_smoothing)
    of_rows = weights.to(answers.device)[wanted.clamp(min=0)] * (wanted >= 0)
    return (of_rows * each).sum() / of_rows.sum()


def balanced_weights(classes: Tensor, num_classes: int) -> Tensor:
    """Weights under which every class that occurs counts the same, 1 in the mean over the examples.

    One that does not occur, as a tag that only words within a training token get, weighs as much as the rarest.
    """
    counts = torch.bincount(classes, minlength=num_classes).float()
    occurs = counts > 0
    return len(classes) / (int(occurs.sum()) * counts.where(occurs, counts[occurs].min()))
