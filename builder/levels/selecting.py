"""`hplm select`: a ladder for a version, of which held-out texts certify what it costs.

The head learns from training texts, a fifth of the held-out ones fits the temperatures, and the rest certifies. The
ladder is published as the next version: its weights are the live one's files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.engine.exits import NEVER
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.hplm.hplms import building_hplm, publish_linked
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.trainable import Indices
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.calibration import NO_LABEL, Floats, labels_of
from builder.construct.tasks.dataset import REGRESSION, TaskData
from builder.construct.tasks.examples import Example
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.answers import StepAnswers
from builder.levels.certificate import Certificate, certify, least_tolerance
from builder.levels.early_head import MOST_ANSWERS, HeadData, fit_early_head, fit_number_head
from builder.levels.guarantee import Each, EachInParts
from builder.levels.material import ONE_IN_FITS, HplmTask, LabelledFiles, UnlabelledFile, material_of
from builder.levels.paired_answers import LabelPairs, NumberPairs, PairedAnswers
from builder.levels.served import answered_rows, served_rows
from builder.levels.target import DECLARED, LADDER, Target
from builder.progress import Report, Step

_LEVELS = "levels"
"""The figure of a version that names its levels, where it has several."""
_SEED = 17
_DIGITS = 4
_PER_UNIT = 10_000


@dataclass(frozen=True)
class Selecting:
    """What to select, and by which texts.

    Attributes:
        id: The hPLM.
        files: Texts that an early head learns from, and those that certify it.
        target: What may be lost.
        after: Layers before the early head; by default a third of them, at least two.
    """

    id: str
    files: LabelledFiles | UnlabelledFile
    target: Target
    after: int | None = None


@dataclass(frozen=True)
class Selection:
    """The outcome: the live version, and a ladder or why there is none."""

    entry: HplmEntry
    ladder: Ladder | None
    figures: dict[str, Any]
    reason: str | None = None


def select_ladder(
    home: Home, registry: Registry, selecting: Selecting, settings: StackSettings, report: Report
) -> Selection:
    """Find a ladder that keeps the target, and publish it; the live version serves meanwhile, and stays without one.

    Raises:
        InvalidArgumentError: The root has too few layers, the hPLM misses a target accuracy in full, or answers with
            numbers, which have none.
        TrainingDataError: The files do not fit the hPLM, or hold too few texts.
    """
    with building_hplm(home, selecting.id) as hold:
        live = registry.hplm(selecting.id)
        hold.will_read(live.domain.folders)
        found = _Search(home, registry, live, selecting, settings, report).found()
        if found.ladder is None:
            return found
        return replace(found, entry=_publish(home, registry, live, found.ladder, selecting.target))


class _Search:
    def __init__(
        self,
        home: Home,
        registry: Registry,
        live: HplmEntry,
        selecting: Selecting,
        settings: StackSettings,
        report: Report,
    ) -> None:
        self._home, self._live, self._selecting, self._report = home, live, selecting, report
        self._root = RootFolder(home.root(live.domain.root))
        self._num_layers = self._root.geometry.num_upper_layers
        self.after = exit_of(live.domain.root, self._num_layers, selecting.after)
        self._artifact = read_artifact(home.path / live.folder, self._root.fingerprint)
        self._stack = UpperStack(self._root, replace(settings, num_slots=2))
        trained_on = TrainedTexts.read(home.path / live.folder)
        self._material = material_of(selecting.files, HplmTask.of(live), trained_on, selecting.target)
        train, held_out = self._material.train, self._material.held_out
        self._objective = objective_of(TaskData(live.task, live.labels, train, held_out))

    def _encoded(self, what: str, examples: Sequence[Example]) -> EncodedSet:
        return encoded_set(self._home, self._live.domain, self._objective, examples, what, self._report)

    def found(self) -> Selection:
        target = self._selecting.target
        step = self._early_step()
        answers = self._answers(step)
        self._report(Step("certify", 0, 1))
        order = np.random.default_rng(_SEED).permutation(len(answers))
        fits, certifies = np.split(order, [len(order) // ONE_IN_FITS])
        temperature, of_full = answers.temperatures(fits)
        confidence = answers.confidence(temperature)[certifies]
        certificate = self._certified(answers, confidence, certifies)
        figures: dict[str, Any] = {
            **target.noted,
            "after": self.after,
            "layers": self._num_layers,
            "held_out_texts": len(order),
            "left_out_as_trained_on": self._material.num_dropped,
            **_all_rounded(answers.figures(certifies, temperature)),
        }
        if certificate is None:
            kept = "keeps the ladder that it has" if _LEVELS in self._live.metrics else "answers by all its layers"
            could = target.with_tolerance(self._least_tolerance(answers, confidence, certifies))
            reason = (
                f"no threshold keeps {target.promise}; these texts could certify {could}, "
                "and more texts may certify more"
            )
            return Selection(self._live, None, figures, f"{reason}; nothing was published: {self._live.id} {kept}")
        leaves = confidence >= certificate.threshold
        figures |= {
            "threshold": _rounded(certificate.threshold),
            "certified_on": certificate.rows,
            "counted": _rounded(certificate.harms) if answers.in_parts else certificate.harms,
            "bound": _rounded(certificate.bound),
            "answered_early": _rounded(certificate.exit_share),
            "disagreement": _rounded(self._disagreement(answers, certifies[leaves])),
            **_all_rounded(answers.as_served(certifies, leaves)),
            "mean_layers": _rounded(self._num_layers - (self._num_layers - self.after) * certificate.exit_share),
        }
        step = replace(step, temperature=temperature, threshold=certificate.threshold)
        return Selection(self._live, Ladder(step, of_full, figures), figures)

    def _early_step(self) -> EarlyStep:
        """Return the step of a fitted head; how sure it has to be is not known yet."""
        what, objective, is_regression = "training", self._objective, self._live.task == REGRESSION
        texts = self._encoded(what, self._material.train)
        if is_regression:
            rows = served_rows(self._stack, self._artifact, self.after, objective, texts, what, self._report)
            fitted = fit_number_head(torch.cat(list(rows.states)), torch.cat(list(rows.logits))[:, 0])
            return EarlyStep(self.after, fitted.head, 1.0, NEVER, fitted.scale)
        labels = torch.cat([labels_of(target, objective.num_outputs) for target in texts.targets])
        every = max(1, len(labels) // MOST_ANSWERS)
        rows = served_rows(self._stack, self._artifact, self.after, objective, texts, what, self._report, every)
        labels = labels[::every]
        if not self._material.has_labels:
            labels = torch.full_like(labels, NO_LABEL)
        head = fit_early_head(HeadData(torch.cat(list(rows.states)), torch.cat(list(rows.logits)), labels))
        return EarlyStep(self.after, head, 1.0, NEVER)

    def _answers(self, step: EarlyStep) -> PairedAnswers:
        """The early and the full ones to held-out texts; full ones are right where no label says otherwise."""
        what, objective, has_labels = "held-out", self._objective, self._material.has_labels
        texts = self._encoded(what, self._material.held_out)
        head = step.stored_head.to(torch.float32)
        rows = answered_rows(self._stack, self._artifact, self.after, head, objective, texts, what, self._report)
        if step.scale is not None:
            numbers, of_full = torch.cat(list(rows.early)), torch.cat(list(rows.full))
            return NumberPairs(numbers, of_full, step.scale, objective if has_labels else None, texts.targets)
        if has_labels:
            early, full = (StepAnswers.of(objective, each, texts.targets) for each in (rows.early, rows.full))
        else:
            early, full = (StepAnswers.beside(rows.full, each) for each in (rows.early, rows.full))
        return LabelPairs(early, full, has_labels)

    def _certified(self, answers: PairedAnswers, confidence: Floats, certifies: Indices) -> Certificate | None:
        target, counted = self._selecting.target, answers.counted(self._selecting.target).of(certifies)
        if counted.staying is not None and counted.staying.mean() > target.tolerance:
            raise InvalidArgumentError(
                f"hPLM {self._live.id!r} misses {target.shown} with all its layers: it has "
                f"{1 - counted.staying.mean():.3f} on the held-out texts; more training texts may help"
            )
        tested = target.tested(answers.in_parts)
        return certify(confidence, counted.leaving, target.tolerance, tested, counted.staying)

    def _disagreement(self, answers: PairedAnswers, leaving: Indices) -> float:
        """Return a bound of the share of early answers that differ from the full ones, for the running audit."""
        target, different = self._selecting.target, answers.different[leaving]
        tested = EachInParts(target.risk) if answers.in_parts else Each(target.risk)
        return tested.bound(different.sum().item(), len(different))

    def _least_tolerance(self, answers: PairedAnswers, confidence: Floats, certifies: Indices) -> float:
        """Return the least tolerance that some threshold would keep on these texts, rounded up."""
        target, counted = self._selecting.target, answers.counted(self._selecting.target).of(certifies)
        least = least_tolerance(confidence, counted.leaving, target.tested(answers.in_parts), counted.staying)
        return math.ceil(least * _PER_UNIT) / _PER_UNIT


def default_exit(num_layers: int) -> int:
    """Return the layer that texts leave after unless another is named."""
    return min(max(2, num_layers // 3), num_layers - 1)


def exit_of(root: str, num_layers: int, after: int | None) -> int:
    """Return the layer that texts leave after.

    Raises:
        InvalidArgumentError: No early head can stand there.
    """
    if num_layers == 1:
        raise InvalidArgumentError(f"root {root!r} has one upper layer, so no text can leave before it")
    chosen = default_exit(num_layers) if after is None else after
    if not 0 < chosen < num_layers:
        raise InvalidArgumentError(
            f"root {root!r} has {num_layers} upper layers; an early head can stand after 1 to "
            f"{num_layers - 1} of them, not after {chosen}"
        )
    return chosen


def _rounded(number: Any) -> float:
    return round(float(number), _DIGITS)


def _all_rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: _rounded(value) for name, value in figures.items()}


def _publish(home: Home, registry: Registry, live: HplmEntry, ladder: Ladder, target: Target) -> HplmEntry:
    """Publish the next version, whose weights are the live one's files."""
    fingerprint = registry.root(live.domain.root).fingerprint
    figures = {
        _LEVELS: [*ladder.levels],
        LADDER: dict(ladder.certified),
        DECLARED: target.noted | {"after": ladder.early.after},
    }
    return publish_linked(home, registry, live, lambda folder: write_ladder(folder, ladder, fingerprint), figures)


def levels_of(entry: HplmEntry) -> dict[str, Any]:
    """Say which levels a version has, and what was certified."""
    return {"id": entry.id, "version": entry.version, "levels": [*entry.levels], **entry.metrics.get(LADDER, {})}
