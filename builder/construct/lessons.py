"""What a teacher tells an hPLM that is tuned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash
from torch import Tensor, float32

from builder.construct.tasks.dataset import TaskData
from builder.construct.tasks.examples import Example
from builder.progress import Report


@dataclass(frozen=True)
class Lessons:
    """Texts and a teacher's answers to them, `[m, C]` each (see `Objective`).

    A text that the teacher made itself carries the labels of the example that it was made of.
    """

    examples: Sequence[Example]
    answers: Sequence[Tensor]

    @property
    def digest(self) -> str:
        digest = xxhash.xxh3_128(repr(list(self.examples)).encode("utf-8", "surrogatepass"))
        for answer in self.answers:
            digest.update(answer.to(float32).contiguous().numpy().tobytes())
        return digest.hexdigest()


Teacher = Callable[[TaskData, Report], Lessons]
"""Reads the training examples."""
