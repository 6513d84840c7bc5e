"""What a teacher tells an hPLM that is tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import xxhash
from torch import Tensor, float32

from builder.construct.hplm.reading import Reading
from builder.construct.hplm.settings import TuneSettings
from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example
from builder.progress import Report


@dataclass(frozen=True)
class Lessons:
    """Texts and a teacher's answers to them, `[m, C]` each (see `Objective`).

    A text that was made of an example carries its labels; those of a text that nobody labelled say nothing.
    """

    examples: Sequence[Example]
    answers: Sequence[Tensor]
    reading: Reading | None = None
    """What the answers come from, of a teacher who can say it."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """What is worth knowing of the teacher, by names that say that they are its."""

    @cached_property
    def digest(self) -> str:
        digest = xxhash.xxh3_128(repr(list(self.examples)).encode("utf-8", "surrogatepass"))
        for answer in self.answers:
            digest.update(answer.to(float32).contiguous().numpy().tobytes())
        return digest.hexdigest()


class Teacher(Protocol):
    """Reads a task's examples and says what there is to learn."""

    @property
    def unlabelled(self) -> Path | None:
        """A file of texts that nobody has labelled, which it answers too."""
        ...

    def __call__(self, data: TaskData, pupil: TuneSettings, report: Report) -> Lessons:
        """`pupil`: how it is tuned; who teaches it weighs classes, and pools states, as it was asked to."""
        ...
