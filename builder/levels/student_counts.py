"""How many students keep a target: what the first m of them lose against all layers, on held-out texts.

With m students every text is answered by these. Numbers are tested from the best one down, an order that was fixed
before, up to the first that fails; so the risk of all tests is that of one. The last that passed is the fewest to which
the load may go.
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
from builder.construct.tasks.objective import Objective
from builder.levels.figures import rounded, rounded_ms
from builder.levels.ladder_costs import LadderCosts
from builder.levels.paired_answers import PairedAnswers
from builder.levels.profile import StudentsProfile
from builder.levels.served import student_answers
from builder.levels.target import Target
from builder.progress import Report

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
        lost, rows = pairs.counted(target).leaving.sum().item(), len(pairs)
        guarantee, work = target.tested(pairs.in_parts), students * depth
        keeps = keeps and guarantee.holds(lost, rows, target.tolerance)
        found.append(
            StudentsProfile(
                students,
                keeps,
                rounded(lost / rows),
                rounded(guarantee.bound(lost, rows)),
                rounded_ms(costs.alone_ms(tokens, work, work)),
                rounded_ms(costs.full_batch_ms(work)),
            )
        )
    return found[::-1]


def with_fewest(figures: Mapping[str, Any], profiles: Sequence[StudentsProfile]) -> dict[str, Any]:
    """Return the figures of a version's students with the fewest that keep the target, if any do."""
    kept, others = fewest(profiles), {name: value for name, value in figures.items() if name != _LEAST}
    return others if kept is None else {**others, _LEAST: kept.students}


def fewest(profiles: Sequence[StudentsProfile]) -> StudentsProfile | None:
    """Return the fewest students that keep the target, if any do."""
    return next((each for each in profiles if each.keeps), None)
