"""`hplm select`: a ladder for a version, of which held-out texts certify what it costs.

The head learns from training texts, a fifth of the held-out ones fits the temperatures, and the rest certifies. The
ladder is published as the next version: its weights are the live one's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.adapters.bank import read_artifact
from backends.adapters.ladder import EarlyStep, Ladder, write_ladder
from backends.engine.exits import NEVER
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.lower.settings import lower_dtype_beside
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.word_marks import WordMarks
from backends.stack_key import STUDENTS
from builder.construct.hplm.hplms import building_hplm, publish_linked
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.trainable import Indices
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.calibration import NO_LABEL
from builder.construct.tasks.dataset import CLASSIFICATION, REGRESSION, TaskData
from builder.construct.tasks.examples import Example, task_text
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import STUDENTS_CHOSEN_BY, MadeWith, TrainedTexts
from builder.levels.answers import StepAnswers
from builder.levels.candidate import CALIBRATED, Candidate, Trial, all_layers
from builder.levels.early_head import MOST_ANSWERS, HeadData, fit_early_head, fit_number_head
from builder.levels.ensembles import with_ensembles
from builder.levels.exit_layers import exits_of, noted_exits, offered_exits
from builder.levels.ladder_costs import LATE, LadderCosts
from builder.levels.learned_texts import LearnedTexts
from builder.levels.material import ONE_IN_FITS, HplmTask, LabelledFiles, UnlabelledFile, material_of
from builder.levels.paired_answers import Counted, LabelPairs, NumberPairs, PairedAnswers
from builder.levels.profile import Profile, StudentsProfile, write_profile
from builder.levels.served import (
    AnsweredRows,
    PrunedRows,
    ServedRows,
    answered_rows,
    pruned_rows,
    served_rows,
    word_marks,
)
from builder.levels.student_counts import ServedStudents, fewest, notes_of, students_profiles, with_fewest
from builder.levels.target import DECLARED, LADDER, Target
from builder.levels.word_pruning import LEAST_SAVED, Pair, WordPruning
from builder.progress import Report, Step

_LEVELS = "levels"
"""The figure of a version that names its levels, where it has several."""
UNDER_LOAD = "under_load"
"""The figure that says how the target's deadline is kept while all batches are full."""
NOT_CALIBRATED = "no temperature makes the confidence of early answers true; the certificate holds all the same"
_STRICT = "strict"
"""The figure that says where texts may have certified that the version was trained on, or chosen by."""
_TRAINED_ON = "trained_on"
"""The figure of a version that says that nobody knows which texts it was trained on."""
_CHOSE = "chose_the_version"
"""The figure that counts the held-out texts that the version's epoch was chosen by."""
NOT_STRICT = (
    "it is unknown which texts this version was trained on, as it was imported or is of an earlier release; if the "
    "held-out texts are among them, the certificate promises too much"
)
BEST_OF_THESE = (
    "{count} of the held-out texts chose the epoch of this version, so all layers answer them better than other texts: "
    "an accuracy that they certify promises too much"
)
_SEED = 17


@dataclass(frozen=True)
class Selecting:
    """What to select, and by which texts.

    Attributes:
        id: The hPLM.
        files: Texts that an early head learns from, and those that certify it.
        target: What may be lost.
        after: Layers that the early head may stand after, of which the best one is chosen; by default a low one and
            one half way up, or one only where the held-out texts are too few for two.
    """

    id: str
    files: LabelledFiles | UnlabelledFile
    target: Target
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The outcome: the live version, and a ladder or why there is none."""

    entry: HplmEntry
    ladder: Ladder | None
    figures: dict[str, Any]
    profile: Profile
    reason: str | None = None
    about_students: Sequence[str] = ()
    """What users have to know of the comparison of its students."""

    @property
    def warnings(self) -> list[str]:
        """Say what may not hold: confidences, the certificate, the target's deadline, or the target of students."""
        found, said = [*self.about_students], self.figures.get(UNDER_LOAD, "")
        if not self.figures.get(CALIBRATED, True):
            found.append(NOT_CALIBRATED)
        if _TRAINED_ON in self.figures:
            found.append(NOT_STRICT)
        if self.figures.get(_CHOSE) and self.figures["loss"] == "target-accuracy":
            found.append(BEST_OF_THESE.format(count=self.figures[_CHOSE]))
        if said.startswith(LATE):
            found.append(f"a deadline of {self.figures['deadline_ms']:g} ms under full load: {said}")
        return found


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
        return replace(found, entry=_publish(home, registry, live, found.ladder, found.profile, selecting))


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
        self.exits = exits_of(live.domain.root, self._num_layers, selecting.after)
        num_needed = len(self.exits) if selecting.after else 1
        self._costs = LadderCosts.of(home, live.domain.root)
        self._costs.require_known(selecting.target.deadline_ms)
        self._artifact = read_artifact(home.path / live.folder, self._root.fingerprint)
        self._settings = replace(settings, num_slots=2)
        self._stack = UpperStack(self._root, self._settings)
        self._students: Sequence[StudentsProfile] = []
        self._about_students: list[str] = []
        self._lower_dtype = lower_dtype_beside(settings.dtype)
        made_with = MadeWith.read(home.path / live.folder)
        self._knows_made_with = made_with.trained.are_all and made_with.chose.are_all
        of_task = HplmTask.of(live)
        self._material = material_of(selecting.files, of_task, made_with.trained, selecting.target, num_needed)
        if not selecting.after:
            self.exits = offered_exits(self._num_layers, selecting.target, len(self._material.held_out))
        train, held_out = self._material.train, self._material.held_out
        self._learned = LearnedTexts.of(train, made_with.trained, self._root)
        self._num_chose = made_with.chose.num_among(held_out)
        self._objective = objective_of(TaskData(live.task, live.labels, train, held_out))

    def _encoded(self, what: str, examples: Sequence[Example]) -> EncodedSet:
        return encoded_set(
            self._home, self._live.domain, self._objective, examples, what, self._report, self._lower_dtype
        )

    def found(self) -> Selection:
        target, candidates = self._selecting.target, self._candidates()
        certified = [each for each in candidates if each.gains]
        chosen = min(self._able_to_settle(certified) or candidates, key=self._rank)
        figures: dict[str, Any] = {
            **target.noted,
            "after": chosen.after,
            **({} if len(self.exits) == 1 else {"tried": [*self.exits]}),
            "layers": self._num_layers,
            "held_out_texts": len(self._material.held_out),
            "left_out_as_trained_on": self._material.num_dropped,
            **(self._not_strict if certified else {}),
            **chosen.figures,
            **(chosen.certified if certified else {}),
            **self._under_load(chosen if certified else None),
        }
        if not certified:
            kept = "keeps the ladder that it has" if _LEVELS in self._live.metrics else "answers by all its layers"
            could = target.with_tolerance(min(each.least_tolerance for each in candidates))
            reason = f"hardly any text is sure enough to leave early with {target.promise}"
            if chosen.certificate is None:
                reason = (
                    f"no threshold keeps {target.promise}; these texts could certify {could}, "
                    "and more texts may certify more"
                )
            if fewest(self._students) is not None:
                reason += "; the students that keep it are published with a ladder only"
            reason += f"; nothing was published: {self._live.id} {kept}"
            profile = self._profile(candidates, None)
            return Selection(self._live, None, figures, profile, reason, self._about_students)
        profile, ladder = self._profile(candidates, chosen), chosen.ladder(figures)
        return Selection(self._live, ladder, figures, profile, None, self._about_students)

    def _profile(self, candidates: Sequence[Candidate], chosen: Candidate | None) -> Profile:
        target = self._selecting.target
        profiled = [
            *(each.profile(self._costs, self._tokens) for each in candidates),
            all_layers(candidates[0].counted, target.tested(), self._num_layers, self._costs, self._tokens),
        ]
        taken = (None, None, None) if chosen is None else (chosen.after, chosen.full_weight, chosen.alpha)
        of_target = self._live.id, target.shown, target.tolerance
        return Profile(*of_target, taken[0], self._num_layers, profiled, *taken[1:], self._students)

    def _able_to_settle(self, certified: Sequence[Candidate]) -> Sequence[Candidate]:
        """Return the candidates whose early answers keep the deadline, if all layers miss it and any keeps it."""
        deadline_ms, within_ms = self._selecting.target.deadline_ms, self._costs.answered_within_ms
        if deadline_ms is None or self._selecting.target.late == "reject" or within_ms(1.0) <= deadline_ms:
            return certified
        return [each for each in certified if within_ms(each.least_depth) <= deadline_ms] or certified

    @property
    def _not_strict(self) -> dict[str, Any]:
        """Say where the version may know, or was chosen by, texts that certify."""
        why: dict[str, Any] = {} if self._knows_made_with else {_TRAINED_ON: "unknown"}
        if self._num_chose:
            why[_CHOSE] = self._num_chose
        return {_STRICT: False, **why} if why else {}

    def _under_load(self, chosen: Candidate | None) -> dict[str, str]:
        deadline_ms, rejects = self._selecting.target.deadline_ms, self._selecting.target.late == "reject"
        if deadline_ms is None:
            return {}
        least_depth = None if chosen is None or rejects else chosen.least_depth
        return {UNDER_LOAD: self._costs.under_load(deadline_ms, least_depth)}

    def _rank(self, candidate: Candidate) -> tuple[float, bool, float]:
        """Order candidates by what they are predicted to cost; of those that cost the same the better one is first.

        That is one whose ensemble is proven to answer better, and then the safer one. One that prunes has to save so
        much that it is worth the trouble.
        """
        bound = 1.0 if candidate.certificate is None else candidate.certificate.bound
        is_alone = candidate.full_weight is None or candidate.certificate is None
        worth = 1.0 if candidate.alpha is None else 1 - LEAST_SAVED
        return self._costs.rank_us(candidate.mean_work) / worth, is_alone, bound

    def _candidates(self) -> list[Candidate]:
        steps = self._early_steps(self._encoded("training", self._learned.examples))
        held_out = self._encoded("held-out", self._material.held_out)
        self._tokens = mean(map(len, held_out.rows))
        answers = self._answers(steps, held_out)
        self._report(Step("certify", 0, 1))
        order = np.random.default_rng(_SEED).permutation(len(self._material.held_out))
        fits, certifies = np.split(order, [len(order) // ONE_IN_FITS])
        pairs = [*zip(steps, answers, strict=True)]
        if self._live.task == CLASSIFICATION:
            pairs = self._with_more(pairs, held_out, fits, len(certifies))
        trial = Trial(self._selecting.target, len(pairs), fits, certifies, self._num_layers)
        candidates = [Candidate(*pair, trial) for pair in pairs]
        self._require_full_accuracy(candidates[0].counted)
        return candidates

    def _with_more(self, pairs: Sequence[Pair], texts: EncodedSet, fits: Indices, num_certifying: int) -> list[Pair]:
        """Add to the candidates of a classification those that answer rows otherwise that go on."""
        target = self._selecting.target

        def prune(step: EarlyStep, alpha: float, rows: Indices) -> PrunedRows:
            of_task = self._stack, self._artifact, step, alpha, self._objective
            return pruned_rows(*of_task, texts, self._marks, rows, self._report)

        pairs = with_ensembles(pairs, fits, num_certifying, target)
        return WordPruning(prune, texts.lengths, self._num_layers, fits, target).tried(pairs, num_certifying)

    @cached_property
    def _marks(self) -> list[WordMarks]:
        """Where the words of held-out texts begin."""
        return word_marks(self._root.tokenizer(), [task_text(example) for example in self._material.held_out])

    def _require_full_accuracy(self, counted: Counted) -> None:
        """Check that all layers reach a target accuracy: what they lose, no ladder gains."""
        target, lost = self._selecting.target, 0.0 if counted.staying is None else float(counted.staying.mean())
        if lost > target.tolerance:
            raise InvalidArgumentError(
                f"hPLM {self._live.id!r} misses {target.shown} with all its layers: it has {1 - lost:.3f} on the "
                "held-out texts; more training texts may help"
            )

    def _early_steps(self, texts: EncodedSet) -> list[EarlyStep]:
        """Return steps of fitted heads; how sure they have to be is not known yet."""
        if self._live.task == REGRESSION:
            return [self._step_of_numbers(*each) for each in zip(self.exits, self._read(texts), strict=True)]
        labels = self._learned.labels(texts.targets, self._objective.num_outputs)
        every = max(1, len(labels) // MOST_ANSWERS)
        read, labels = self._read(texts, every), labels[::every]
        if not self._material.has_labels:
            labels = torch.full_like(labels, NO_LABEL)
        return [self._step_of_labels(*each, labels) for each in zip(self.exits, read, strict=True)]

    def _read(self, texts: EncodedSet, every: int = 1) -> list[ServedRows]:
        return served_rows(
            self._stack, self._artifact, self.exits, self._objective, texts, "training", self._report, every
        )

    def _step_of_numbers(self, after: int, rows: ServedRows) -> EarlyStep:
        fitted = fit_number_head(torch.cat(list(rows.states)), torch.cat(list(rows.logits))[:, 0])
        return EarlyStep(after, fitted.head, 1.0, NEVER, fitted.scale)

    def _step_of_labels(self, after: int, rows: ServedRows, labels: Tensor) -> EarlyStep:
        head = fit_early_head(HeadData(torch.cat(list(rows.states)), torch.cat(list(rows.logits)), labels))
        return EarlyStep(after, head, 1.0, NEVER)

    def _answers(self, steps: Sequence[EarlyStep], texts: EncodedSet) -> list[PairedAnswers]:
        """The early and the full ones to held-out texts, for each step."""
        heads = {step.after: step.served_head for step in steps}
        answered = answered_rows(self._stack, self._artifact, heads, self._objective, texts, "held-out", self._report)
        self._students = self._students_profiles(answered[0].full, steps[0].scale, texts)
        return [self._paired(rows, step.scale, texts) for step, rows in zip(steps, answered, strict=True)]

    def _students_profiles(
        self, full: Sequence[Tensor], scale: float | None, texts: EncodedSet
    ) -> Sequence[StudentsProfile]:
        """Compare the version's students with all layers; students that cannot be computed hinder no ladder."""
        if self._live.students is None:
            return []
        try:
            folder = self._home.path / self._live.folder
            students = ServedStudents.read(self._root, folder, self._artifact, self._settings)
            answers = students.answers(self._objective, texts, self._report)
        except (HplmError, torch.OutOfMemoryError) as error:
            self._about_students.append(f"its students were not compared: {error}")
            return []
        pairs = [self._paired(AnsweredRows(each, full), scale, texts) for each in answers]
        chosen_by = TrainedTexts.read(folder, STUDENTS_CHOSEN_BY)
        found = students_profiles(pairs, self._selecting.target, students.depth, self._costs, self._tokens)
        self._about_students += notes_of(found, self._selecting.target, chosen_by, self._material.held_out)
        return found

    def _paired(self, rows: AnsweredRows, scale: float | None, texts: EncodedSet) -> PairedAnswers:
        """Compare answers with the full ones, which are right where no label says otherwise.

        Args:
            rows: Both.
            scale: Of the numbers of a regression.
            texts: The rows.
        """
        objective, has_labels = self._objective, self._material.has_labels
        if scale is not None:
            numbers, of_full = torch.cat(list(rows.early)), torch.cat(list(rows.full))
            return NumberPairs(numbers, of_full, scale, objective if has_labels else None, texts.targets)
        tags = self._live.labels if objective.about_words else None
        if has_labels:
            early, full = (StepAnswers.of(objective, each, texts.targets, tags) for each in (rows.early, rows.full))
        else:
            early, full = (StepAnswers.beside(rows.full, each, tags) for each in (rows.early, rows.full))
        return LabelPairs(early, full, has_labels)


def _publish(
    home: Home, registry: Registry, live: HplmEntry, ladder: Ladder, profile: Profile, selecting: Selecting
) -> HplmEntry:
    """Publish the next version, whose weights are the live one's files."""
    fingerprint = registry.root(live.domain.root).fingerprint
    figures: dict[str, Any] = {
        _LEVELS: [*ladder.levels],
        LADDER: dict(ladder.certified),
        DECLARED: selecting.target.noted | noted_exits(sorted(selecting.after)),
    }
    if live.students is not None:
        figures[STUDENTS] = with_fewest(live.metrics[STUDENTS], profile.students, selecting.target)

    def write(folder: Path) -> None:
        write_ladder(folder, ladder, fingerprint)
        write_profile(folder, profile)

    return publish_linked(home, registry, live, write, figures)


def levels_of(entry: HplmEntry) -> dict[str, Any]:
    """Say which levels a version has, and what was certified."""
    return {"id": entry.id, "version": entry.version, "levels": [*entry.levels], **entry.metrics.get(LADDER, {})}
