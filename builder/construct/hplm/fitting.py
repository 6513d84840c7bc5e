"""Fitting any model to a task: epochs, early stopping on the dev file, checkpoints that end as if never interrupted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from backends.errors import HplmError
from builder.construct.hplm.reading import Reading
from builder.construct.hplm.settings import TuneSettings
from builder.construct.tasks.objective import Objective
from builder.construct.training.checkpoint import Checkpoint
from builder.progress import Report, Step

_WARMUP_SHARE = 0.1
_PREDICTED_ROWS = 64

Places = npt.NDArray[np.int64]
OnRows = Callable[[int, int], None]
"""How many rows are done, of how many."""
Weights = Mapping[str, Tensor]


class Trainee(Protocol):
    """A model that is fitted: its head answers to what it reads.

    Inputs, and which half each token is in `[B, L]` → `[B, C]`, or `[B, L, C]` where the task is about words.

    The parameters of `trained` whose names begin with `head` learn at the head's rate.
    """

    def __call__(self, inputs: Tensor, halves: Tensor, /) -> Tensor: ...

    def read(self, inputs: Tensor, halves: Tensor, /) -> Tensor:
        """What the head reads: `[B, P]` or `[B, L, P]` fp32."""

    def answer(self, states: Tensor, /) -> Tensor:
        """What the head makes of that: `[B, C]` or `[B, L, C]`."""

    def trained(self) -> dict[str, nn.Parameter]: ...

    def train(self, mode: bool = True) -> nn.Module: ...


class Rows(Protocol):
    """What is learnt from: rows of any lengths, with a target each."""

    @property
    def lengths(self) -> Places: ...

    @property
    def targets(self) -> Sequence[Any]: ...

    def padded(self, places: Places, device: torch.device) -> tuple[Tensor, Tensor]:
        """The inputs of some rows, and which half each token is in `[B, L]`, 0 where there is none."""


@dataclass(frozen=True)
class Fitted:
    """The best weights by the dev file, what was measured with them, and the epoch that they are from."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    epoch: int = 0


class Fitting:
    """One run; an epoch depends on nothing but the weights, the optimiser's state and its own number.

    Args:
        model: With the weights to begin with.
        objective: Of the task.
        train: To learn from.
        measure: The dev metrics of some weights.
        settings: How to learn; `recipe` and `pooling` are the model's affair.
        phase: What it is called in the progress.
        teacher: Soft targets, `[m, C]` for each row of `train` (see `Objective`).
        reading: What a teacher's head reads of these rows, pooled as for this model's; only with soft targets.
    """

    def __init__(
        self,
        model: Trainee,
        objective: Objective[Any],
        train: Rows,
        measure: Callable[[Weights], dict[str, float]],
        settings: TuneSettings,
        phase: str,
        teacher: Sequence[Tensor] | None = None,
        reading: Reading | None = None,
    ) -> None:
        self._model, self._objective, self._train, self._measure = model, objective, train, measure
        self._settings, self._phase, self._teacher, self._reading = settings, phase, teacher, reading
        self._trained = model.trained()
        self._device = next(iter(self._trained.values())).device
        self._optimiser = self._adamw()
        self._average = {name: p.detach().clone() for name, p in self._trained.items()} if settings.ema_decay else {}
        self._steps_per_epoch = math.ceil(len(train.targets) / settings.rows_per_batch)
        self._epoch = 0
        self._best = Fitted()

    def run(self, report: Report, checkpoint: Checkpoint | None = None) -> Fitted:
        if saved := checkpoint.load() if checkpoint else None:
            self._restore(saved)
        while self._epoch < self._settings.epochs and self._epoch - self._best.epoch < self._settings.patience:
            self._epoch += 1
            self._train_epoch(report)
            self._keep_if_best()
            if checkpoint:
                checkpoint.save(self._state())
        if self._best.epoch == 0:
            raise HplmError("the tuning never gave numbers; try a lower learning rate")
        steps = self._settings.epochs * self._steps_per_epoch
        report(Step(self._phase, steps, steps, self._best_so_far()))
        return self._best

    def _adamw(self) -> torch.optim.AdamW:
        """Head and body at their own rates; biases and norms do not decay."""
        settings = self._settings
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, parameter in self._trained.items():
            of_head = name.startswith("head")
            rate = settings.head_learning_rate if of_head and settings.head_learning_rate else settings.learning_rate
            decays = not name.endswith("bias") and "norm" not in name.lower()
            groups.setdefault((rate, settings.weight_decay if decays else 0.0), []).append(parameter)
        return torch.optim.AdamW(
            [
                {"params": parameters, "lr": rate, "highest_rate": rate, "weight_decay": decay}
                for (rate, decay), parameters in groups.items()
            ],
            fused=True,
        )

    def _train_epoch(self, report: Report) -> None:
        settings = self._settings
        torch.manual_seed(settings.seed + self._epoch)
        order = np.random.default_rng((settings.seed, self._epoch))
        first_step = (self._epoch - 1) * self._steps_per_epoch
        steps = settings.epochs * self._steps_per_epoch
        batches = shuffled_batches(self._train.lengths, settings.rows_per_batch, order)
        self._model.train()
        for step, places in enumerate(batches, start=first_step):
            for group in self._optimiser.param_groups:
                group["lr"] = group["highest_rate"] * rate_share(step, steps)
            loss = self._step(places, step)
            report(Step(self._phase, step + 1, steps, f"loss {loss:.3f}{self._best_so_far(', ')}"))

    def _step(self, places: Places, step: int) -> float:
        loss = self._loss(places)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        self._optimiser.step()
        if self._settings.ema_decay:
            # A short memory at first: the average begins at weights that know nothing.
            decay = min(self._settings.ema_decay, (1 + step) / (10 + step))
            for name, parameter in self._trained.items():
                self._average[name].lerp_(parameter.detach(), 1 - decay)
        return float(loss.detach())

    def _loss(self, places: Places) -> Tensor:
        settings = self._settings
        inputs, halves = self._train.padded(places, self._device)
        with torch.autocast(self._device.type, dtype=torch.bfloat16), _fastest_attention(self._device):
            states = self._model.read(inputs, halves)
            outputs = self._model.answer(states)
        targets = [self._train.targets[place] for place in places]
        answers = torch.cat(self._objective.rows(outputs.float(), targets))
        loss = self._objective.hard_loss(answers, targets, settings.label_smoothing)
        if self._teacher is None:
            return loss
        soft = torch.cat([self._teacher[place] for place in places]).to(self._device, torch.float32)
        soft_loss = self._objective.soft_loss(answers, soft, settings.temperature)
        taught = torch.lerp(loss, soft_loss, settings.distil_weight)
        if self._reading is None:
            return taught
        read = torch.cat(self._objective.rows(states, targets))
        return taught + settings.states_weight * self._reading.distance(read, places)

    def _keep_if_best(self) -> None:
        weights = self._average if self._settings.ema_decay else self._trained
        if not all(bool(torch.isfinite(tensor).all()) for tensor in weights.values()):
            return
        metrics, metric = self._measure(weights), self._objective.main_metric
        if metrics[metric] > self._best.metrics.get(metric, -math.inf):
            kept = {name: tensor.detach().clone() for name, tensor in weights.items()}
            self._best = Fitted(kept, metrics, self._epoch)

    def _state(self) -> dict[str, Any]:
        best = self._best
        return {
            "epoch": self._epoch,
            "weights": {name: parameter.detach() for name, parameter in self._trained.items()},
            "average": self._average,
            "optimiser": self._optimiser.state_dict(),
            "best": {"weights": best.weights, "metrics": best.metrics, "epoch": best.epoch},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self._epoch = state["epoch"]
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(state["weights"][name])
            for name, average in self._average.items():
                average.copy_(state["average"][name])
        self._optimiser.load_state_dict(state["optimiser"])
        self._best = Fitted(**state["best"])

    def _best_so_far(self, before: str = "") -> str:
        metric = self._objective.main_metric
        return f"{before}dev {metric} {self._best.metrics[metric]:.3f}" if self._best.epoch else ""


def predict(
    model: Trainee, objective: Objective[Any], dataset: Rows, device: torch.device, on_rows: OnRows | None = None
) -> list[Tensor]:
    """What the task looks at of each row: `[m, C]`."""
    model.train(False)
    return _of_rows(model, objective, dataset, device, on_rows)


def read(
    model: Trainee, objective: Objective[Any], dataset: Rows, device: torch.device, on_rows: OnRows | None = None
) -> list[Tensor]:
    """What the head reads of each row for that: `[m, P]`."""
    model.train(False)
    return _of_rows(model.read, objective, dataset, device, on_rows)


@torch.no_grad()
def _of_rows(
    model: Callable[[Tensor, Tensor], Tensor],
    objective: Objective[Any],
    dataset: Rows,
    device: torch.device,
    on_rows: OnRows | None,
) -> list[Tensor]:
    found: list[Tensor] = [torch.empty(0)] * len(dataset.targets)
    done = 0
    for places in batches(dataset.lengths, np.arange(len(dataset.targets)), _PREDICTED_ROWS):
        inputs, halves = dataset.padded(places, device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            outputs = model(inputs, halves)
        of_rows = objective.rows(outputs.float().cpu(), [dataset.targets[place] for place in places])
        for place, row in zip(places, of_rows, strict=True):
            found[place] = row
        done += len(places)
        if on_rows is not None:
            on_rows(done, len(found))
    return found


def _fastest_attention(device: torch.device) -> AbstractContextManager[None]:
    """Written out on the CPU, where the fused kernel's backward pass takes a third of a step at these lengths."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cpu" else nullcontext()


def rate_share(step: int, steps: int) -> float:
    """The learning rate of a step, counted from 0, as a share of the highest: linear warm-up, then half a cosine."""
    warmup_steps = max(1, round(_WARMUP_SHARE * steps))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step + 1 - warmup_steps) / (steps + 1 - warmup_steps)))


def batches(lengths: Places, places: Places, size: int) -> list[Places]:
    """The places in batches of similar lengths."""
    in_order = places[np.argsort(lengths[places], kind="stable")]
    return [in_order[start : start + size] for start in range(0, len(in_order), size)]


def shuffled_batches(lengths: Places, size: int, order: np.random.Generator) -> list[Places]:
    """Random batches of similar lengths: shuffled pools, sorted inside, batches shuffled again."""
    places = order.permutation(len(lengths))
    pools = [places[start : start + 16 * size] for start in range(0, len(places), 16 * size)]
    found = [batch for pool in pools for batch in batches(lengths, pool, size)]
    return [found[place] for place in order.permutation(len(found))]
