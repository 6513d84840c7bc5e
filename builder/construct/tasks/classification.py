"""One class for each text or pair."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from backends.root.words import RowWords
from builder.construct.tasks import metrics
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.objective import Objective, balanced_weights, distribution_distance


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
        weights = None if self._weights is None else self._weights.to(answers.device)
        return functional.cross_entropy(answers, wanted, weights, label_smoothing=label_smoothing)

    def soft_loss(self, answers: Tensor, teacher: Tensor, temperature: float) -> Tensor:
        return distribution_distance(answers, teacher, temperature)

    def metrics(self, outputs: Sequence[Tensor], targets: Sequence[int]) -> dict[str, float]:
        predicted, true = torch.cat(list(outputs)).argmax(dim=-1).numpy(), torch.tensor(targets).numpy()
        return {"accuracy": metrics.accuracy(predicted, true), "macro_f1": metrics.macro_f1(predicted, true)}
