"""The objectives of tasks with one class or number for each text or pair, and the choice by a task's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backends.root.words import RowWords
from builder.construct.tasks import metrics
from builder.construct.tasks.dataset import NER, REGRESSION, TaskData
from builder.construct.tasks.examples import LabelledText, TaggedSentence
from builder.construct.tasks.metrics import Floats
from builder.construct.tasks.ner import Ner
from builder.construct.tasks.objective import Objective, balanced_weights, cross_entropy, distribution_distance


class Classification(Objective[int]):
    """A target is the index of the row's label; a label that was not trained has the index behind the last."""

    main_metric = "accuracy"

    def __init__(self, labels: Sequence[str], train: Sequence[LabelledText], balanced: bool = False) -> None:
        self._index_of: dict[str | float, int] = {label: index for index, label in enumerate(labels)}
        self.num_outputs = len(labels)
        self.about_pairs = train[0].text_pair is not None
        classes = [self._index_of[example.label] for example in train] if balanced else []
        self._weights = balanced_weights(torch.tensor(classes), self.num_outputs) if balanced else None

    def targets(self, examples: Sequence[LabelledText], words: Sequence[RowWords | None]) -> list[int]:
        return [self._index_of.get(example.label, self.num_outputs) for example in examples]

    def hard_loss(self, answers: Tensor, targets: Sequence[int], label_smoothing: float) -> Tensor:
        wanted = torch.tensor(targets, device=answers.device)
        return cross_entropy(answers, wanted, self._weights, label_smoothing)

    def soft_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return distribution_distance(answers, teacher, temperature)

    def terms(self, outputs: Sequence[Tensor], targets: Sequence[int]) -> Floats:
        hits = torch.cat(list(outputs)).argmax(dim=-1).numpy() == np.array(targets)
        terms: Floats = np.stack([hits, np.ones_like(hits)], axis=-1).astype(np.float64)
        return terms

    def score(self, sums: Floats) -> Floats:
        return metrics.ratio_of_sums(sums)

    def metrics(self, outputs: Sequence[Tensor], targets: Sequence[int]) -> dict[str, float]:
        predicted, true = torch.cat(list(outputs)).argmax(dim=-1).numpy(), torch.tensor(targets).numpy()
        return {"accuracy": metrics.accuracy(predicted, true), "macro_f1": metrics.macro_f1(predicted, true)}


class Regression(Objective[float]):
    """A target is the row's number. Outputs and a teacher's are on its scale; the loss is in standard deviations."""

    main_metric = "pearson"
    learns_states = False  # a number says more than a label does: on STS-B 85.0 by answers alone, 82.9 with states
    num_outputs = 1

    def __init__(self, train: Sequence[LabelledText]) -> None:
        self.about_pairs = train[0].text_pair is not None
        values = np.array([float(example.label) for example in train])
        self.scale = (float(values.mean()), float(values.std()))

    def targets(self, examples: Sequence[LabelledText], words: Sequence[RowWords | None]) -> list[float]:
        return [float(example.label) for example in examples]

    def hard_loss(self, answers: Tensor, targets: Sequence[float], label_smoothing: float) -> Tensor:
        return self._distance(answers, torch.tensor(targets, device=answers.device)[:, None])

    def soft_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return self._distance(answers, teacher)

    def terms(self, outputs: Sequence[Tensor], targets: Sequence[float]) -> Floats:
        """In standard deviations from the mean, so that the sums lose nothing to rounding."""
        offset, factor = self.scale
        predicted = (torch.cat(list(outputs))[:, 0].double().numpy() - offset) / factor
        return metrics.pearson_terms(predicted, (np.array(targets) - offset) / factor)

    def score(self, sums: Floats) -> Floats:
        return metrics.pearson_of_sums(sums)

    def metrics(self, outputs: Sequence[Tensor], targets: Sequence[float]) -> dict[str, float]:
        predicted = torch.cat(list(outputs))[:, 0].double().numpy()
        true = np.array(targets)
        return {
            "pearson": metrics.pearson(predicted, true),
            "spearman": metrics.spearman(predicted, true),
            "mse": float(((predicted - true) ** 2).mean()),
        }

    def _distance(self, values: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(values / self.scale[1], wanted / self.scale[1])


def objective_of(data: TaskData, balanced: bool = False) -> Objective[Any]:
    """`balanced` lets each class, or each tag, weigh the same; numbers have no classes."""
    if data.task == NER:
        return Ner(data.labels, [each for each in data.train if isinstance(each, TaggedSentence)], balanced)
    texts = [each for each in data.train if isinstance(each, LabelledText)]
    return Regression(texts) if data.task == REGRESSION else Classification(data.labels, texts, balanced)
