"""Distillation of students: in parallel one after the other learns what is not said yet; a narrow chain together.

A chain as wide as the hidden rows is the first upper layers as they are. Adapters that are tuned in these answer better
than in layers that have learned to say what the upper layers say.

Each training has a checkpoint of its own beside the root, which stays until the set is published: an interrupted
distillation passes over the students that are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from backends.student_levels import MOST_STUDENTS
from builder.construct.hplm.trainable import Indices, fastest_attention
from builder.construct.students.hidden_texts import HiddenTexts, numbered_token_batches
from builder.construct.students.learning import Fidelity, LearningStudents
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.loop import Schedule, TrainingLoop, Watch
from builder.construct.training.optimiser import ParameterGroup
from builder.progress import Report, Step
from builder.settings.students import StudentSettings

_FINAL_RATE_SHARE = 0.05
_JOINT_RATE_SHARE = 0.3
_JOINT = "together"
_CHAIN_PHASE, _JOINT_PHASE = "distil the chain of students", "distil all students together"
_FIT = "fit the maps of students"
_WATCHED_TEXTS = 64
FITTED_TEXTS = 1_000
"""By which the maps of a chain are fitted."""


@dataclass(frozen=True)
class Distilled:
    """The outcome: how many students are kept, how near they come, and the seconds that it took."""

    count: int
    fidelity: Sequence[Fidelity]
    seconds: float


class StudentDistiller:
    """Trains students.

    Args:
        students: With room for as many students as there can be.
        texts: To learn from.
        held_out: To measure with.
        settings: See there; `count` says whether students that bring little are kept.
        checkpoint_of: Names the checkpoint of a training.
        report: Gets a step for each batch.
    """

    def __init__(
        self,
        students: LearningStudents,
        texts: HiddenTexts,
        held_out: HiddenTexts,
        settings: StudentSettings,
        checkpoint_of: Callable[[str], Checkpoint],
        report: Report,
    ) -> None:
        self._students, self._texts, self._held_out = students, texts, held_out
        self._settings, self._checkpoint_of, self._report = settings, checkpoint_of, report
        self._everything = np.arange(len(texts))

    def run(self) -> Distilled:
        """Train to the end, from the checkpoints where there are some."""
        return self._run_chain() if self._students.shape.is_chained else self._run_parallel()

    def _run_chain(self) -> Distilled:
        students, most, texts = self._students, self._students.shape.count, min(FITTED_TEXTS, len(self._texts))
        for student in range(most):
            students.start(student)
        students.fit_maps(self._texts, texts, lambda done: self._report(Step(_FIT, done, texts)))
        seconds = 0.0
        if students.learns:
            seconds = self._learn_together(_CHAIN_PHASE, most, most * self._settings.steps, 1.0)
        fidelity, count = students.fidelity(self._held_out, most), 1
        while count < most and not self._brings_little(_FIT, count, fidelity[count - 1].error, fidelity[count].error):
            count += 1
        return Distilled(count, fidelity[:count], seconds)

    def _run_parallel(self) -> Distilled:
        count, error, seconds = 0, np.inf, 0.0
        for student in range(self._students.shape.count):
            seconds += self._boost(student)
            reached = self._students.fidelity(self._held_out, student + 1)[-1].error
            if self._brings_little(_phase(student), student, error, reached):
                break
            count, error = student + 1, reached
        if count > 1:
            steps = round(self._settings.joint_share * self._settings.steps)
            seconds += self._learn_together(_JOINT_PHASE, count, steps, _JOINT_RATE_SHARE)
        return Distilled(count, self._students.fidelity(self._held_out, count), seconds)

    def _brings_little(self, phase: str, student: int, before: float, reached: float) -> bool:
        """Whether a student, counted from 0, is dropped: it lowers the error too little, and no number was given."""
        is_wanted = student == 0 or self._settings.count is not None
        if is_wanted or reached <= (1 - self._settings.least_gain) * before:
            return False
        note = f"student {student + 1} is dropped: it lowers the error from {before:.4f} to {reached:.4f} only"
        self._report(Step(phase, 1, 1, note))
        return True

    def _boost(self, student: int) -> float:
        settings, students = self._settings, self._students
        students.start(student)

        def loss(indices: Indices, step: int) -> Tensor:
            batch = self._texts.batch(indices)
            with fastest_attention(batch.hidden.device):
                return students.boosting_loss(batch, student, settings.stacking_weight)

        groups = self._groups_of_texts(student)
        watch = _HeldOutCosine(lambda: students.fidelity(self._held_out, student + 1, _WATCHED_TEXTS)[-1].cosine)
        return self._train(_phase(student), str(student + 1), [student], groups, loss, settings.steps, 1.0, watch)

    def _learn_together(self, phase: str, count: int, steps: int, rate_share: float) -> float:
        if steps == 0:
            return 0.0

        def loss(indices: Indices, step: int) -> Tensor:
            batch = self._texts.batch(indices)
            with fastest_attention(batch.hidden.device):
                return self._students.joint_loss(batch, count)

        groups = [(1.0, self._everything)]
        watch = _HeldOutCosine(lambda: self._students.fidelity(self._held_out, count, _WATCHED_TEXTS)[-1].cosine)
        return self._train(phase, _JOINT, range(count), groups, loss, steps, rate_share, watch)

    def _groups_of_texts(self, student: int) -> list[tuple[float, Indices]]:
        """Return the texts that a student learns from: all, or for later ones also the worst by what is missing yet."""
        settings = self._settings
        num_hard = round(settings.hard_texts * len(self._texts))
        if student == 0 or not num_hard or not settings.hard_share:
            return [(1.0, self._everything)]
        worst = np.argsort(-self._students.residuals(self._texts, student), kind="stable")[:num_hard]
        return [(1 - settings.hard_share, self._everything), (settings.hard_share, np.sort(worst))]

    def _train(
        self,
        phase: str,
        name: str,
        students: Sequence[int],
        groups: Sequence[tuple[float, Indices]],
        loss: Callable[[Indices, int], Tensor],
        steps: int,
        rate_share: float,
        watch: Watch,
    ) -> float:
        settings = self._settings
        seed = settings.seed + len(students) * 1000 + students[0]

        def batches(after_step: int) -> Iterator[Indices]:
            most = settings.tokens_per_batch
            return numbered_token_batches(self._texts.lengths, groups, most, seed, after_step, steps)

        schedule = Schedule(
            steps=steps,
            warmup_steps=min(settings.warmup_steps, steps),
            round_steps=settings.checkpoint_every,
            final_share=_FINAL_RATE_SHARE,
            clip_norm=settings.clip_norm,
            seed=seed,
        )
        learning = self._students.parameters_of(students)
        group = ParameterGroup(learning, rate_share * settings.learning_rate, settings.weight_decay)
        checkpoint = self._checkpoint_of(name)
        checkpoint.path.parent.mkdir(parents=True, exist_ok=True)
        seconds = TrainingLoop(phase, [group], schedule, batches, loss, watch).run(checkpoint, self._report)
        self._students.parameters_of([])
        return seconds


class _HeldOutCosine(Watch):
    """The nearness on a few held-out texts, for the progress."""

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._found: float | None = None

    def end_round(self, number: int) -> None:
        self._found = self._measure()

    @property
    def note(self) -> str:
        return "" if self._found is None else f", held-out cosine {self._found:.4f}"


def checkpoint_paths(root: Path) -> list[Path]:
    """Name all that a distillation may leave beside a root's folder."""
    return [checkpoint_path(root, name) for name in (*map(str, range(1, MOST_STUDENTS + 1)), _JOINT)]


def checkpoint_path(root: Path, name: str) -> Path:
    return root.with_name(f".{root.name}.students-{name}")


def _phase(student: int) -> str:
    return f"distil student {student + 1}"
