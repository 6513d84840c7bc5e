"""Tuning of one hPLM: adapters and head learn, everything else stays.

The lower model is frozen, so each text's hidden rows are looked up once, through the same table that will serve them,
and kept; an epoch computes the upper layers only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from backends.adapters.bank import ADAPTERS_DTYPE, HEAD_DTYPE
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers
from builder.construct.hplm import trainable
from builder.construct.hplm.teacher_data import TeacherData, TeacherStates
from builder.construct.hplm.trainer import Trainer, Weights
from builder.construct.hplm.tunable import (
    EncodedSet,
    TunableHplm,
    Tuned,
    new_head,
    pooled_width,
    pooling_for,
    scaled,
)
from builder.construct.tasks.objective import NO_SCALE, Objective
from builder.construct.training.checkpoint import Checkpoint
from builder.progress import Report
from builder.settings.hplm import TuneSettings

__all__ = ["EncodedSet", "TuneSettings", "Tuned", "Upper", "evaluate", "predict", "tune"]

_PHASE = "tune adapters and head"


@dataclass(frozen=True)
class Upper:
    """The shared upper layers that adapters are tuned for."""

    layers: UpperLayers
    geometry: RootGeometry

    @property
    def device(self) -> torch.device:
        return next(self.layers.parameters()).device

    def model(self, tuned: Tuned, scale: tuple[float, float] = NO_SCALE, dropout: float = 0.0) -> TunableHplm:
        return TunableHplm(self.layers, self.geometry, tuned.adapters, tuned.head, tuned.pooling, scale, dropout)


def tune(
    upper: Upper,
    objective: Objective[Any],
    train: EncodedSet,
    dev: EncodedSet,
    settings: TuneSettings,
    report: Report,
    *,
    teacher_data: TeacherData | None = None,
    start: Tuned | None = None,
    checkpoint: Checkpoint | None = None,
) -> Tuned:
    """Train, and keep the best epoch by the dev set.

    Args:
        upper: On the device to train on.
        objective: Of the task.
        train: To learn from.
        dev: To choose the best epoch by.
        settings: See there.
        report: Gets a step for each batch.
        teacher_data: A teacher's, for the rows of `train`. Its states are distilled too, and a new head starts as its
            head; ignored where there is a `start`, where the pooling differs, or where the task does better without.
        start: Weights to go on from; new ones otherwise.
        checkpoint: Where each epoch is noted; an interrupted tuning goes on there and ends the same, and a finished one
            is not repeated.
    """
    states = None if start else _distilled_states(teacher_data, objective, settings)
    first = start or _untuned(upper, objective, settings, states)
    model = upper.model(first, objective.scale, settings.dropout)

    def measure(weights: Weights) -> dict[str, float]:
        return evaluate(upper, objective, as_stored(model, weights, objective, first.pooling), dev)

    answers = teacher_data.answers if teacher_data else None
    best = Trainer(model, objective, train, measure, settings, _PHASE, answers, states).run(report, checkpoint)
    return replace(as_stored(model, best.weights, objective, first.pooling), metrics=best.metrics, epoch=best.epoch)


def as_stored(model: TunableHplm, weights: Weights, objective: Objective[Any], pooling: str) -> Tuned:
    """Return weights as they will be stored, so that those that are measured are those that will be served."""
    stored = {name: tensor.detach().cpu() for name, tensor in weights.items()}
    adapters, head = model.adapters(stored).to(ADAPTERS_DTYPE), model.head(stored)
    if objective.scale == NO_SCALE:
        head = head.to(HEAD_DTYPE)
    return Tuned(adapters, head, pooling, {}, 0)


def predict(upper: Upper, objective: Objective[Any], tuned: Tuned, dataset: EncodedSet) -> list[Tensor]:
    """Compute the answers of each row that the task looks at: `[m, C]`."""
    return trainable.predict(upper.model(tuned), objective, dataset, upper.device)


def evaluate(upper: Upper, objective: Objective[Any], tuned: Tuned, dataset: EncodedSet) -> dict[str, float]:
    return objective.metrics(predict(upper, objective, tuned, dataset), dataset.targets)


def _distilled_states(
    teacher_data: TeacherData | None, objective: Objective[Any], settings: TuneSettings
) -> TeacherStates | None:
    """The states that the pupil's own are compared with, if they help and both pool alike."""
    states = teacher_data.states if teacher_data else None
    if states is None or states.pooling != pooling_for(objective, settings):
        return None
    return states if objective.learns_states and settings.states_weight > 0 else None


def _untuned(upper: Upper, objective: Objective[Any], settings: TuneSettings, states: TeacherStates | None) -> Tuned:
    torch.manual_seed(settings.seed)
    adapters = settings.recipe.identity(upper.geometry, upper.layers)
    pooling = pooling_for(objective, settings)
    width = pooled_width(pooling, upper.geometry.hidden_size)
    head = states.head if states else new_head(objective.num_outputs, width)
    offset, factor = objective.scale
    return Tuned(adapters, scaled(head, offset, factor), pooling, {}, 0)
