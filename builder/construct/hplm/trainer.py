"""Training any model on a task: epochs, the best one by the dev file, a running average of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from builder.construct.hplm.teacher_data import TeacherStates
from builder.construct.hplm.trainable import (
    Indices,
    TaskRows,
    TrainableModel,
    fastest_attention,
    shuffled_batches,
)
from builder.construct.tasks.objective import Objective
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import mixed_precision
from builder.construct.training.loop import DivergedError, Schedule, TrainingLoop, Watch
from builder.construct.training.optimiser import ParameterGroup
from builder.progress import Report
from builder.settings.hplm import TuneSettings

_WARMUP_SHARE = 0.1
_HEAD = "head"

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class BestWeights:
    """The best weights by the dev file, their metrics, and their epoch; 0 where no epoch was measured."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    epoch: int = 0


class Trainer:
    """One run.

    Args:
        model: With the weights to begin with.
        objective: Of the task.
        train: To learn from.
        measure: The dev metrics of some weights.
        settings: How to learn; `recipe` and `pooling` are the model's affair.
        phase: What it is called in the progress.
        answers: A teacher's, `[m, C]` for each row of `train` (see `Objective`).
        states: What the teacher's head reads of these rows, pooled as for this model's; only with answers.
    """

    def __init__(
        self,
        model: TrainableModel,
        objective: Objective[Any],
        train: TaskRows,
        measure: Callable[[Weights], dict[str, float]],
        settings: TuneSettings,
        phase: str,
        answers: Sequence[Tensor] | None = None,
        states: TeacherStates | None = None,
    ) -> None:
        self._model, self._objective, self._train, self._measure = model, objective, train, measure
        self._settings, self._phase, self._answers, self._states = settings, phase, answers, states
        self._trained = model.trained()
        self._device = next(iter(self._trained.values())).device

    def run(self, report: Report, checkpoint: Checkpoint | None = None) -> BestWeights:
        """Train to the end, or until patience is out; a diverged training keeps what it had reached."""
        watch = BestEpoch(self._model, self._trained, self._objective.main_metric, self._measure, self._settings)
        loop = TrainingLoop(self._phase, self._groups(), self._schedule(), self._batches, self._loss, watch)
        try:
            loop.run(checkpoint, report)
        except DivergedError:
            if watch.best.epoch == 0:
                raise
        if watch.best.epoch == 0:
            raise DivergedError("the training never gave finite weights; try a lower learning rate")
        return watch.best

    def _schedule(self) -> Schedule:
        steps_per_epoch = math.ceil(len(self._train.targets) / self._settings.rows_per_batch)
        steps = self._settings.epochs * steps_per_epoch
        return Schedule(
            steps=steps,
            warmup_steps=max(1, round(_WARMUP_SHARE * steps)),
            round_steps=steps_per_epoch,
            seed=self._settings.seed,
        )

    def _groups(self) -> list[ParameterGroup]:
        """Head and body at their own rates; biases and norms do not decay."""
        settings = self._settings
        groups: dict[tuple[float, float], dict[str, nn.Parameter]] = {}
        for name, parameter in self._trained.items():
            rate = (settings.head_learning_rate if name.startswith(_HEAD) else None) or settings.learning_rate
            decays = not name.endswith("bias") and "norm" not in name.lower()
            groups.setdefault((rate, settings.weight_decay if decays else 0.0), {})[name] = parameter
        return [ParameterGroup(parameters, rate, decay) for (rate, decay), parameters in groups.items()]

    def _batches(self, after_step: int) -> Iterator[Indices]:
        """Yield the batches of the epochs that are not done; each epoch has an order of its own."""
        settings = self._settings
        for epoch in range(after_step // self._schedule().round_steps + 1, settings.epochs + 1):
            rng = np.random.default_rng((settings.seed, epoch))
            yield from shuffled_batches(self._train.lengths, settings.rows_per_batch, rng)

    def _loss(self, indices: Indices, step: int) -> Tensor:
        inputs, segments = self._train.padded(indices, self._device)
        with mixed_precision(self._device), fastest_attention(self._device):
            states = self._model.read(inputs, segments)
            outputs = self._model.answer(states)
        return self._loss_of_answers(outputs, indices) + self._loss_of_states(states, indices)

    def _loss_of_answers(self, outputs: Tensor, indices: Indices) -> Tensor:
        settings, targets = self._settings, self._targets(indices)
        answers = torch.cat(self._objective.rows(outputs.float(), targets))
        loss = self._objective.hard_loss(answers, targets, settings.label_smoothing)
        if self._answers is None:
            return loss
        soft = torch.cat([self._answers[index] for index in indices]).to(self._device, torch.float32)
        soft_loss = self._objective.soft_loss(answers, soft, settings.temperature)
        return torch.lerp(loss, soft_loss, settings.distil_weight)

    def _loss_of_states(self, states: Tensor, indices: Indices) -> Tensor | float:
        """Compute how far the states are from the teacher's, where these are learnt."""
        if self._states is None:
            return 0.0
        read = torch.cat(self._objective.rows(states, self._targets(indices)))
        return self._settings.states_weight * self._states.distance(read, indices)

    def _targets(self, indices: Indices) -> list[Any]:
        return [self._train.targets[index] for index in indices]


class BestEpoch(Watch):
    """Measures each epoch, keeps the best one's weights, and ends a training that is out of `patience`.

    Of equally good epochs the last counts, which has learned most: on a few dev texts, many are equally good.
    With an `ema_decay` the running average of the weights is measured and kept instead of the last ones.
    """

    def __init__(
        self,
        model: TrainableModel,
        trained: Mapping[str, nn.Parameter],
        main_metric: str,
        measure: Callable[[Weights], dict[str, float]],
        settings: TuneSettings,
    ) -> None:
        self._model, self._trained, self._main_metric, self._measure = model, trained, main_metric, measure
        self._patience, self._ema_decay = settings.patience, settings.ema_decay
        self._average = {name: one.detach().clone() for name, one in trained.items()} if self._ema_decay else {}
        self.best = BestWeights()
        self._risen_in = 0
        """The epoch in which the metric rose last."""

    def begin_round(self) -> None:
        self._model.train()

    def after_step(self, step: int) -> None:
        # A short memory at first: the average begins at weights that know nothing.
        decay = min(self._ema_decay, step / (9 + step))
        for name, average in self._average.items():
            average.lerp_(self._trained[name].detach(), 1 - decay)

    def end_round(self, number: int) -> None:
        weights = self._average or self._trained
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            return
        metrics = self._measure(weights)
        reached, best = metrics[self._main_metric], self.best.metrics.get(self._main_metric, -math.inf)
        if reached > best:
            self._risen_in = number
        if reached >= best:
            kept = {name: tensor.detach().clone() for name, tensor in weights.items()}
            self.best = BestWeights(kept, metrics, number)

    def goes_on(self, rounds: int) -> bool:
        return self._patience is None or rounds - self._risen_in < self._patience

    @property
    def note(self) -> str:
        return f", best dev {self._main_metric} {self.best.metrics[self._main_metric]:.3f}" if self.best.epoch else ""

    def state(self) -> dict[str, Any]:
        return {"average": self._average, "best": vars(self.best), "risen_in": self._risen_in}

    def restore(self, state: dict[str, Any]) -> None:
        for name, average in self._average.items():
            average.copy_(state["average"][name])
        self.best, self._risen_in = BestWeights(**state["best"]), state.get("risen_in", state["best"]["epoch"])
