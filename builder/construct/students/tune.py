"""Tuning of one hPLM's students: adapters and heads of all of them learn at once, so that every prefix answers.

The teacher is the hPLM itself with all its layers. Loss per batch, w = 2 for one student and 1 for more:

    Σ_m w_m · distance(answers of the first m students, teacher's answers)
      + states_weight · Σ_k distance(map_k(states of student k), states that the teacher's head reads)

The latter where pooling is linear and the task learns from states, and over the students that say everything by
themselves: all of a chain, in parallel the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backends.adapters.bank import ADAPTERS_DTYPE, HEAD_DTYPE
from backends.adapters.pooling import PAIR_POOLING
from builder.construct.hplm.teacher_data import TeacherData
from builder.construct.hplm.trainable import Indices, fastest_attention, of_rows
from builder.construct.hplm.trainer import Trainer, Weights
from builder.construct.hplm.tunable import EncodedSet, Tuned
from builder.construct.students.start import start_of
from builder.construct.students.tunable import StudentLayers, TunableStudents, TunedStudents
from builder.construct.tasks.objective import NO_SCALE, Objective
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import mixed_precision
from builder.progress import Report
from builder.settings.hplm import TuneSettings

_PHASE = "tune the students' adapters and heads"
_FIRST_WEIGHT = 2.0


@dataclass(frozen=True)
class StudentTask:
    """What students are tuned on.

    Attributes:
        students: On the device to train on.
        objective: Of the task.
        hplm: With all its layers.
        train: To learn from; `taught` has the hPLM's answers to these.
        dev: To choose the best epoch by.
    """

    students: StudentLayers
    objective: Objective[Any]
    hplm: Tuned
    train: EncodedSet
    taught: TeacherData
    dev: EncodedSet


def tune_students(
    task: StudentTask, settings: TuneSettings, report: Report, checkpoint: Checkpoint | None = None
) -> TunedStudents:
    """Train, and keep the epoch in which all numbers of students do best in the mean on the dev set."""
    torch.manual_seed(settings.seed)
    start = start_of(task.students, settings.recipe, task.hplm)
    model = TunableStudents(task.students, start, task.hplm.pooling, task.objective.scale, settings.dropout)

    def tuned(weights: Weights, metrics: dict[str, float], epoch: int) -> TunedStudents:
        """Return the weights as they will be stored."""
        adapters, heads = model.tuned({name: tensor.detach().cpu() for name, tensor in weights.items()})
        if task.objective.scale == NO_SCALE:
            heads = tuple(head.to(HEAD_DTYPE) for head in heads)
        return TunedStudents(adapters.to(ADAPTERS_DTYPE), heads, metrics, epoch)

    def measure(weights: Weights) -> dict[str, float]:
        return {task.objective.main_metric: sum(found := scores(task, tuned(weights, {}, 0))) / len(found)}

    best = PrefixTrainer(model, task, measure, settings).run(report, checkpoint)
    return tuned(best.weights, best.metrics, best.epoch)


def answers_of(task: StudentTask, tuned: TunedStudents, dataset: EncodedSet) -> list[list[Tensor]]:
    """Compute the answers of one student, of two, and so on, to each row that the task looks at: `[m, C]`."""
    model = TunableStudents(task.students, tuned, task.hplm.pooling)
    model.train(False)
    rows = of_rows(model.answer_each, task.objective, dataset, task.students.device, None)
    each = [row.chunk(task.students.shape.count, dim=-1) for row in rows]
    return [list(answers) for answers in zip(*each, strict=True)]


def scores(task: StudentTask, tuned: TunedStudents) -> list[float]:
    """Measure one student, two, and so on, on the dev set."""
    objective = task.objective
    found = (objective.metrics(answers, task.dev.targets) for answers in answers_of(task, tuned, task.dev))
    return [metrics[objective.main_metric] for metrics in found]


class PrefixTrainer(Trainer):
    """Lets all numbers of students learn from each batch; one forward pass serves all of them."""

    def __init__(self, model: TunableStudents, task: StudentTask, measure: Any, settings: TuneSettings) -> None:
        learns_states = (
            task.objective.learns_states and task.hplm.pooling != PAIR_POOLING and settings.states_weight > 0
        )
        states = task.taught.states if learns_states else None
        super().__init__(model, task.objective, task.train, measure, settings, _PHASE, task.taught.answers, states)
        self._students = model
        self._maps = task.students.maps.requires_grad_(False)

    def _loss(self, indices: Indices, step: int) -> Tensor:
        inputs, segments = self._train.padded(indices, self._device)
        with mixed_precision(self._device), fastest_attention(self._device):
            states = self._students.read(inputs, segments)
            answers = self._students.answers(states)
            pairs = zip(self._maps, self._students.whole(states), strict=False)
            says = [own(each).float() for own, each in pairs] if self._states else []
        losses = [self._loss_of_answers(each, indices) for each in answers]
        losses[0] = _FIRST_WEIGHT * losses[0]
        return torch.stack(losses).sum() + sum(self._loss_of_states(each, indices) for each in says)


def best_count(dev_scores: Sequence[float]) -> int:
    """Return the number of students that is best on the dev texts; of equally good ones the least."""
    return max(range(len(dev_scores)), key=lambda index: (dev_scores[index], -index)) + 1
