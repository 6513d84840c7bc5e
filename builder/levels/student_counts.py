"""How many students keep a target: what the first m of them lose against all layers, on held-out texts.

With m students every text is answered by these. Numbers are tested from the best one down, an order that was fixed
before, up to the first that fails; so the risk of all tests is that of one. The last that passed is the fewest to which
the load may go. A mean over the fleet proves nothing here: a text may be lost by two students and right by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.student_adapters import read_student_adapters
from backends.engine.slotted_layers import StackSettings
from backends.engine.student_layers import StudentLayers
from backends.errors import InvalidArgumentError
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import Objective
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.levels.certificate import balance_of
from builder.levels.figures import rounded, rounded_ms
from builder.levels.ladder_costs import LadderCosts
from builder.levels.paired_answers import PairedAnswers
from builder.levels.profile import StudentsProfile
from builder.levels.served import student_answers
from builder.levels.target import Target
from builder.progress import Report

COMPARED = "compared"
"""The figure that names the target for which the students of a version were compared with all layers."""
_LEAST = "least"
"""The figure that names the fewest to which the load may go."""


@dataclass(frozen=True)
class ServedStudents:
    """A version's students, as the stack that serves them computes them.

    Attributes:
        artifact: Of the version, with what it has for the students.
        depth: What one of them costs, as a share of the upper layers.
    """

    layers: StudentLayers
    artifact: HplmArtifact
    depth: float

    @classmethod
    def read(cls, root: RootFolder, folder: Path, artifact: HplmArtifact, settings: StackSettings) -> Self:
        """Read those of a version.

        Raises:
            FileError: What the root or the version has is damaged, or of other students.
            InvalidArgumentError: The root, or the version, has none.
        """
        students, own = read_students(root), read_student_adapters(folder)
        if students is None or own is None:
            raise InvalidArgumentError(f"{'its root' if students is None else 'the version'} has none")
        return cls(StudentLayers(students, settings), artifact.with_students(own, students), students.depth)

    def answers(self, objective: Objective[Any], texts: EncodedSet, report: Report) -> list[list[Tensor]]:
        return student_answers(self.layers, self.artifact, objective, texts, report)


def students_profiles(
    answers: Sequence[PairedAnswers], target: Target, depth: float, costs: LadderCosts, tokens: float
) -> list[StudentsProfile]:
    """Say what each number of students loses, the fewest first.

    Args:
        answers: Of one student, of two, and so on, beside those of all layers.
        target: What may be lost.
        depth: What one student costs, as a share of the upper layers.
        costs: Of the upper layers.
        tokens: Of a text, in the mean.
    """
    found, keeps = list[StudentsProfile](), True
    for students, pairs in reversed([*enumerate(answers, start=1)]):
        balance, rows = balance_of(pairs.counted(target).leaving), len(pairs)
        guarantee, work = target.tested(pairs.in_parts, rows=rows), students * depth
        keeps = keeps and target.guarantee == "each" and guarantee.holds(balance, rows, target.tolerance)
        found.append(
            StudentsProfile(
                students,
                keeps,
                rounded(guarantee.lost(balance) / rows),
                rounded(guarantee.bound(balance, rows)),
                rounded_ms(costs.alone_ms(tokens, work, work)),
                rounded_ms(costs.full_batch_ms(work)),
            )
        )
    return found[::-1]


def with_fewest(figures: Mapping[str, Any], profiles: Sequence[StudentsProfile], target: Target) -> dict[str, Any]:
    """Return the figures of a version's students with the fewest that keep the target, if any do.

    Students that were not compared keep what was found before.
    """
    if not profiles:
        return dict(figures)
    kept, others = fewest(profiles), {name: value for name, value in figures.items() if name != _LEAST}
    return {**others, COMPARED: target.shown} | ({} if kept is None else {_LEAST: kept.students})


def notes_of(
    profiles: Sequence[StudentsProfile], target: Target, chosen_by: TrainedTexts, held_out: Sequence[Example]
) -> list[str]:
    """Say what users have to know of a comparison: whether the target is kept, and whether these texts may say so."""
    notes = []
    if target.guarantee != "each":
        notes.append("students are certified for each hPLM only: --guarantee fleet says nothing of them")
    elif fewest(profiles) is None:
        best = profiles[-1]
        notes.append(
            f"no number of students keeps {target.promise}: of {best.students} the bound is {best.bound:g}; requests "
            "for students go by the load alone"
        )
    if count := chosen_by.num_among(held_out):
        notes.append(f"{count} of the held-out texts chose its students, so students may lose more than these show")
    elif not chosen_by.are_all:
        notes.append("it is unknown which texts chose its students; of those, students may lose more than these show")
    return notes


def fewest(profiles: Sequence[StudentsProfile]) -> StudentsProfile | None:
    """Return the fewest students that keep the target, if any do."""
    return next((each for each in profiles if each.keeps), None)
