"""One number for each text or pair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from backends.root.words import RowWords
from builder.construct.tasks import metrics
from builder.construct.tasks.examples import LabelledText
from builder.construct.tasks.objective import Objective


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
