"""Early tuning: an hPLM that is tuned learns to say after each upper layer what it says after all of them.

A tuning for the last layer alone leaves the lower ones to answer otherwise more often than early answers may, so few
texts are sure enough to leave there. Here a head after each layer learns the hPLM's own answers, all of them from the
same passes. The heads below the last layer are only to learn by: selections fit others. Loss per batch, of layers l:

    Σ_l distance(answers after layer l, own answers)
      + states_weight · Σ_l distance(map_l(states after layer l), states that the own head reads)

The maps are the linear ones that come nearest before the tuning; the last layer has none. Early heads begin as the own
head behind them. Where there are too few rows to tell a map, as of pairs, whose features are four times as many, there
are none, and no states of lower layers to learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from backends.adapters.head import Head
from backends.adapters.pooling import PAIR_POOLING
from backends.root.store import RootFolder
from builder.construct.hplm.rewriting import FOR_OWN_ANSWERS
from builder.construct.hplm.state_rows import as_float16, stored_rows
from builder.construct.hplm.teacher_data import TeacherStates
from builder.construct.hplm.trainable import Indices, fastest_attention, of_rows
from builder.construct.hplm.trainer import Trainer, Weights
from builder.construct.hplm.tunable import (
    EncodedSet,
    TunableHplm,
    Tuned,
    head_through,
    new_parameter,
    parameter_name,
    scaled,
)
from builder.construct.hplm.tune import Upper, as_stored, evaluate, predict
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import NO_SCALE, Objective
from builder.construct.tasks.paired import paired_difference
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import mixed_precision
from builder.construct.training.least_squares import LeastSquares
from builder.construct.training.loop import DivergedError
from builder.progress import Report, Step
from builder.settings.hplm import TEACHING, TuneSettings

_PHASE = "tune lower layers to answer early"
_TEXTS_AT_ONCE = 1_024
_TEXTS_OF_WIDTH = 5
"""The maps of states of w numbers are fitted on so many times w texts."""


@dataclass(frozen=True)
class EarlyTask:
    """An hPLM that is to learn to answer early.

    Attributes:
        upper: On the device to train on.
        objective: Of the task.
        own: The hPLM as it is.
        train: Texts to answer and learn from; their labels play no part.
        dev: To choose the best epoch by.
        reading: Folder that keeps what the own head reads of `train`.
    """

    upper: Upper
    objective: Objective[Any]
    own: Tuned
    train: EncodedSet
    dev: EncodedSet
    reading: Path


class EarlyOutcome(NamedTuple):
    """The weights to go on with, and how those of the early tuning answer after all layers, against those before."""

    tuned: Tuned
    finding: str


def early_settings(settings: TuneSettings) -> TuneSettings:
    """Return the settings of the early tuning that follows a tuning with these: as where there is a teacher."""
    taught = TuneSettings.defaults(is_taught=True)
    changed = {name: getattr(taught, name) for name in (*TEACHING, "epochs", "patience")}
    return replace(settings, **changed)


def early_examples(root: RootFolder, train: Sequence[Example]) -> list[Example]:
    """Return texts for an hPLM to answer where no teacher has answered any: its training texts, and rewritten ones."""
    return [*train, *FOR_OWN_ANSWERS.apply(train, root.tokenizer(), root.lower().word_embeddings.weight)]


def early_inputs(own: Tuned, settings: TuneSettings, answered: Sequence[Example]) -> dict[str, Any]:
    """Return what an early tuning depends on, besides the dev texts, the root and the tables."""
    parts = {name: part.checksum for name, part in own.adapters.parts().items()}
    return {"settings": asdict(settings), "own": [parts, own.head.checksum], "texts": repr(list(answered))}


def tune_early(task: EarlyTask, settings: TuneSettings, report: Report, checkpoint: Checkpoint | None = None) -> Tuned:
    """Train, and keep the epoch in which all layers do best in the mean on the dev set.

    The head learns on from the own one, whatever the settings' recipe and pooling.
    """
    torch.manual_seed(settings.seed)
    taught, maps = _own_states(task, report), _fitted_maps(task, report)
    model = _starting(task, maps, settings.dropout)

    def tuned(weights: Weights) -> tuple[Tuned, tuple[Head, ...]]:
        stored = {name: tensor.detach().cpu() for name, tensor in weights.items()}
        return as_stored(model.hplm, stored, task.objective, task.own.pooling), model.heads(stored)

    def measure(weights: Weights) -> dict[str, float]:
        """The progress calls this mean over all layers the best dev result."""
        scores = _scores(task, *tuned(weights))
        return {task.objective.main_metric: sum(scores) / len(scores)}

    best = _EarlyTrainer(model, task, measure, settings, taught, maps).run(report, checkpoint)
    found, _ = tuned(best.weights)
    return replace(found, metrics=evaluate(task.upper, task.objective, found, task.dev), epoch=best.epoch)


def tune_early_or_keep(
    task: EarlyTask, settings: TuneSettings, report: Report, checkpoint: Checkpoint | None = None
) -> EarlyOutcome:
    """Tune early, and keep the weights as they are where all layers would then be clearly worse on the dev set."""
    try:
        found = tune_early(task, settings, report, checkpoint)
    except DivergedError as error:
        return _outcome(task.own, False, str(error), report)
    objective = task.objective
    before, now = (
        objective.terms(predict(task.upper, objective, each, task.dev), task.dev.targets) for each in (task.own, found)
    )
    difference = paired_difference(now, before, objective.score)
    is_kept = difference.verdict != "worse"
    finding = f"{difference.verdict}: {objective.main_metric} {difference} on the {len(now)} dev texts"
    return _outcome(found if is_kept else task.own, is_kept, finding, report)


def _outcome(tuned: Tuned, is_kept: bool, finding: str, report: Report) -> EarlyOutcome:
    finding = f"{'kept' if is_kept else 'not kept'}, {finding}"
    report(Step("compare with the weights before", 1, 1, finding))
    return EarlyOutcome(tuned, finding)


class EarlyHplm(nn.Module):
    """Trains the tensors of an hPLM, and heads after all its layers but the last.

    Shape:
        rows `[B, L, H]`; segments `[B, L]`; states `[B, U·P]` or `[B, L, U·P]`: after each layer what its head reads
    """

    def __init__(self, hplm: TunableHplm, heads: Sequence[Head], device: torch.device) -> None:
        """`heads` have raw outputs, on the scale that the hPLM's own head learns on."""
        super().__init__()
        self.hplm = hplm
        self._early = [
            head.map(lambda name, tensor, part=_part(layer): new_parameter(self, part, name, tensor.to(device)))  # type: ignore[misc]
            for layer, head in enumerate(heads, start=1)
        ]

    def forward(self, rows: Tensor, segments: Tensor) -> Tensor:
        """Compute the answers after each layer, side by side: `[B, U·C]` or `[B, L, U·C]`."""
        return torch.cat(self.answers(self.read(rows, segments)), dim=-1)

    def read(self, rows: Tensor, segments: Tensor) -> Tensor:
        return self.hplm.read_each(rows, segments)

    def answer(self, states: Tensor) -> Tensor:
        """Compute the answers after all layers."""
        return self.answers(states)[-1]

    def answers(self, states: Tensor) -> list[Tensor]:
        """Compute the answers after each layer."""
        *early, last = states.chunk(len(self._early) + 1, dim=-1)
        said = [self.hplm.answer_by(head, each) for head, each in zip(self._early, early, strict=True)]
        return [*said, self.hplm.answer(last)]

    def trained(self) -> dict[str, nn.Parameter]:
        """Return all that is trained, by name; that of the hPLM by its own names."""
        early = {name: one for name, one in self.named_parameters(recurse=False) if one.requires_grad}
        return {**self.hplm.trained(), **early}

    def heads(self, weights: Mapping[str, Tensor]) -> tuple[Head, ...]:
        """Return the early heads with these weights, their outputs raw."""
        parts = zip(map(_part, range(1, len(self._early) + 1)), self._early, strict=True)
        return tuple(
            head.map(lambda name, _, part=part: weights[parameter_name(part, name)].detach())  # type: ignore[misc]
            for part, head in parts
        )


class _EarlyTrainer(Trainer):
    """Lets all layers learn from each batch."""

    def __init__(
        self,
        model: EarlyHplm,
        task: EarlyTask,
        measure: Callable[[Weights], dict[str, float]],
        settings: TuneSettings,
        taught: TeacherStates,
        maps: Sequence[nn.Module],
    ) -> None:
        learns_states = task.objective.learns_states and settings.states_weight > 0
        states = taught if learns_states else None
        super().__init__(
            model, task.objective, task.train, measure, settings, _PHASE, taught.answers(*NO_SCALE), states
        )
        self._early, self._maps = model, maps

    def _loss(self, indices: Indices, step: int) -> Tensor:
        inputs, segments = self._train.padded(indices, self._device)
        with mixed_precision(self._device), fastest_attention(self._device):
            states = self._early.read(inputs, segments)
            answers = self._early.answers(states)
            says = self._says(states, len(answers)) if self._states else []
        losses = [self._loss_of_answers(each, indices) for each in answers]
        return torch.stack(losses).sum() + sum(self._loss_of_states(each, indices) for each in says)

    def _says(self, states: Tensor, num_layers: int) -> list[Tensor]:
        *early, last = states.chunk(num_layers, dim=-1)
        return [*(own(each).float() for own, each in zip(self._maps, early, strict=False)), last]


def _own_states(task: EarlyTask, report: Report) -> TeacherStates:
    model, total = task.upper.model(task.own), len(task.train.targets)
    model.train(False)

    def read() -> Iterator[Tensor]:
        for start in range(0, total, _TEXTS_AT_ONCE):
            some = _chosen(task.train, range(start, min(start + _TEXTS_AT_ONCE, total)))
            yield from of_rows(model.read, task.objective, some, task.upper.device, None)
            report(Step("answer with all layers", start + len(some.targets), total))

    rows = stored_rows(task.reading, lambda: ((as_float16(each), None, None) for each in read()))
    return TeacherStates(task.own.head.to(torch.float32), rows, task.own.pooling)


def _fitted_maps(task: EarlyTask, report: Report) -> list[nn.Module]:
    """Return the linear maps from what is read after each layer but the last to what is read after that."""
    total = _TEXTS_OF_WIDTH * task.own.head.hidden_size
    if task.own.pooling == PAIR_POOLING or len(task.train.targets) < total:
        return []
    model, device = task.upper.model(task.own), task.upper.device
    model.train(False)
    num_layers, width = task.upper.geometry.num_upper_layers, task.own.head.hidden_size
    fits = [LeastSquares(width, width, device) for _ in range(num_layers - 1)]

    def add(rows: Tensor, segments: Tensor) -> Tensor:
        flat = model.read_each(rows, segments)
        read = flat if flat.dim() == 2 else flat[segments > 0]
        *early, last = read.chunk(num_layers, dim=-1)
        for fit, each in zip(fits, early, strict=True):
            fit.add(each, last)
        return flat[..., :1]  # what is returned is kept

    def fitted(done: int, _: int) -> None:
        report(Step("fit maps of lower layers", done, total))

    spread = np.linspace(0, len(task.train.targets) - 1, total).astype(int).tolist()
    of_rows(add, task.objective, _chosen(task.train, spread), device, fitted)
    maps: list[nn.Module] = [nn.Linear(width, width).to(device).requires_grad_(False) for _ in fits]
    for fit, own in zip(fits, maps, strict=True):
        fit.solve_into(own)
    return maps


def _starting(task: EarlyTask, maps: Sequence[nn.Module], dropout: float) -> EarlyHplm:
    offset, factor = task.objective.scale
    raw = scaled(task.own.head.to(torch.float32), -offset / factor, 1 / factor)
    early = range(task.upper.geometry.num_upper_layers - 1)
    heads = [raw if own is None else head_through(raw, own, 1) for _, own in zip_longest(early, maps)]
    return EarlyHplm(task.upper.model(task.own, task.objective.scale, dropout), heads, task.upper.device)


def _scores(task: EarlyTask, found: Tuned, heads: Sequence[Head]) -> list[float]:
    """Measure the answers after each layer on the dev set."""
    objective, device = task.objective, task.upper.device
    model = EarlyHplm(task.upper.model(found, objective.scale), heads, device)
    model.train(False)
    rows = [row.chunk(len(heads) + 1, dim=-1) for row in of_rows(model, objective, task.dev, device, on_rows=None)]
    each = zip(*rows, strict=True)
    return [objective.metrics(list(answers), task.dev.targets)[objective.main_metric] for answers in each]


def _chosen(texts: EncodedSet, rows: Sequence[int]) -> EncodedSet:
    targets, middles = [texts.targets[row] for row in rows], [texts.middles[row] for row in rows]
    return EncodedSet([texts.rows[row] for row in rows], targets, texts.lengths[list(rows)], middles)


def _part(layer: int) -> str:
    return f"head{layer}"
