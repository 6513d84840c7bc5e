"""`hplm select`: a ladder for a version, of which held-out texts certify what it costs.

The head learns from training texts, a fifth of the held-out ones fits the temperatures, and the rest certifies. The
ladder is published as the next version: its weights are the live one's files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.hplm.hplms import building_hplm, publish_linked
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.calibration import NO_LABEL, Bools, Floats, calibration_error, labels_of
from builder.construct.tasks.dataset import REGRESSION, TaskData
from builder.construct.tasks.examples import Example
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.answers import StepAnswers
from builder.levels.certificate import Certificate, certify, least_tolerance
from builder.levels.early_head import MOST_ANSWERS, HeadData, fit_early_head
from builder.levels.guarantee import Each
from builder.levels.material import ONE_IN_FITS, HplmTask, LabelledFiles, UnlabelledFile, material_of
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
        InvalidArgumentError: The hPLM answers with numbers, has too few layers, or misses a target accuracy in full.
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
        self.after = exit_of(HplmTask.of(live), live.domain.root, self._num_layers, selecting.after)
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
        head = self._early_head()
        early, full = self._answers(head)
        self._report(Step("certify", 0, 1))
        order = np.random.default_rng(_SEED).permutation(len(full.is_right))
        fits, certifies = np.split(order, [len(order) // ONE_IN_FITS])
        # Nothing says how sure full answers may be where no label does.
        temperatures = early.temperature(fits), full.temperature(fits) if self._material.has_labels else 1.0
        confidence = early.confidence(temperatures[0])
        certificate = self._certified(early, full, confidence, certifies)
        figures: dict[str, Any] = {
            **target.noted,
            "after": self.after,
            "layers": self._num_layers,
            "held_out_texts": len(order),
            "left_out_as_trained_on": self._material.num_dropped,
        }
        if self._material.has_labels:
            before = calibration_error(early.confidence(1.0)[certifies], early.is_right[certifies])
            figures |= {
                "full_accuracy": _rounded(full.is_right[certifies].mean()),
                "ece_before": _rounded(before),
                "ece_after": _rounded(calibration_error(confidence[certifies], early.is_right[certifies])),
            }
        if certificate is None:
            kept = "keeps the ladder that it has" if _LEVELS in self._live.metrics else "answers by all its layers"
            could = target.with_tolerance(self._least_tolerance(early, full, confidence, certifies))
            reason = (
                f"no threshold keeps {target.promise}; these texts could certify {could}, "
                "and more texts may certify more"
            )
            return Selection(self._live, None, figures, f"{reason}; nothing was published: {self._live.id} {kept}")
        leaves = confidence[certifies] >= certificate.threshold
        is_right = np.where(leaves, early.is_right[certifies], full.is_right[certifies])
        figures |= {
            "threshold": _rounded(certificate.threshold),
            "certified_on": certificate.rows,
            "counted": certificate.harms,
            "bound": _rounded(certificate.bound),
            "answered_early": _rounded(certificate.exit_share),
            "disagreement": _rounded(self._disagreement(early, full, certifies[leaves])),
            "accuracy" if self._material.has_labels else "agreement": _rounded(is_right.mean()),
            "mean_layers": _rounded(self._num_layers - (self._num_layers - self.after) * certificate.exit_share),
        }
        step = EarlyStep(self.after, head, temperatures[0], certificate.threshold)
        return Selection(self._live, Ladder(step, temperatures[1], figures), figures)

    def _early_head(self) -> Head:
        what, objective = "training", self._objective
        texts = self._encoded(what, self._material.train)
        labels = torch.cat([labels_of(target, objective.num_outputs) for target in texts.targets])
        every = max(1, len(labels) // MOST_ANSWERS)
        rows = served_rows(self._stack, self._artifact, self.after, objective, texts, what, self._report, every)
        labels = labels[::every]
        if not self._material.has_labels:
            labels = torch.full_like(labels, NO_LABEL)
        head = fit_early_head(HeadData(torch.cat(list(rows.states)), torch.cat(list(rows.logits)), labels))
        return head.to(torch.float16).to(torch.float32)  # as it is stored

    def _answers(self, head: Head) -> tuple[StepAnswers, StepAnswers]:
        """The early and the full ones to held-out texts; full ones are right where no label says otherwise."""
        what, objective = "held-out", self._objective
        texts = self._encoded(what, self._material.held_out)
        rows = answered_rows(self._stack, self._artifact, self.after, head, objective, texts, what, self._report)
        both = rows.early, rows.full
        if not self._material.has_labels:
            early, full = (StepAnswers.beside(rows.full, logits) for logits in both)
        else:
            early, full = (StepAnswers.of(objective, logits, texts.targets) for logits in both)
        return early, full

    def _certified(
        self, early: StepAnswers, full: StepAnswers, confidence: Floats, certifies: np.ndarray[Any, Any]
    ) -> Certificate | None:
        target = self._selecting.target
        harm, stays = _counted(target, early, full)
        if stays is not None and stays[certifies].mean() > target.tolerance:
            raise InvalidArgumentError(
                f"hPLM {self._live.id!r} misses {target.shown} with all its layers: it has "
                f"{1 - stays[certifies].mean():.3f} on the held-out texts; more training texts may help"
            )
        return certify(
            confidence[certifies],
            harm[certifies],
            target.tolerance,
            target.test,
            None if stays is None else stays[certifies],
        )

    def _disagreement(self, early: StepAnswers, full: StepAnswers, leaving: np.ndarray[Any, Any]) -> float:
        """Return a bound of the share of early answers that differ from the full ones, for the running audit."""
        different = _different(early, full)[leaving]
        return Each(self._selecting.target.risk).bound(int(different.sum()), len(different))

    def _least_tolerance(
        self, early: StepAnswers, full: StepAnswers, confidence: Floats, certifies: np.ndarray[Any, Any]
    ) -> float:
        """Return the least tolerance that some threshold would keep on these texts, rounded up."""
        target = self._selecting.target
        harm, stays = _counted(target, early, full)
        always = None if stays is None else stays[certifies]
        least = least_tolerance(confidence[certifies], harm[certifies], target.test, always)
        return math.ceil(least * _PER_UNIT) / _PER_UNIT


def default_exit(num_layers: int) -> int:
    """Return the layer that texts leave after unless another is named."""
    return min(max(2, num_layers // 3), num_layers - 1)


def exit_of(hplm: HplmTask, root: str, num_layers: int, after: int | None) -> int:
    """Return the layer that texts of an hPLM leave after.

    Raises:
        InvalidArgumentError: It answers with numbers, or no early head can stand there.
    """
    if hplm.task == REGRESSION:
        raise InvalidArgumentError(f"hPLM {hplm.id!r} answers with numbers; only labels and entities have ladders")
    if num_layers == 1:
        raise InvalidArgumentError(f"root {root!r} has one upper layer, so no text can leave before it")
    chosen = default_exit(num_layers) if after is None else after
    if not 0 < chosen < num_layers:
        raise InvalidArgumentError(
            f"root {root!r} has {num_layers} upper layers; an early head can stand after 1 to "
            f"{num_layers - 1} of them, not after {chosen}"
        )
    return chosen


def _counted(target: Target, early: StepAnswers, full: StepAnswers) -> tuple[Bools, Bools | None]:
    """Return what is counted of rows that leave, and of rows that stay."""
    if target.loss == "agreement":
        return _different(early, full), None
    if target.loss == "target-accuracy":
        return ~early.is_right, ~full.is_right
    return full.is_right & ~early.is_right, None


def _different(early: StepAnswers, full: StepAnswers) -> Bools:
    pairs = zip(early.logits, full.logits, strict=True)
    return np.array([bool((one.argmax(-1) != other.argmax(-1)).any()) for one, other in pairs])


def _rounded(number: Any) -> float:
    return round(float(number), _DIGITS)


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
