"""Texts through the layers of a version, as the stack that serves it computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.engine.exits import NEVER, Early, Exit
from backends.engine.stack import UpperStack
from builder.construct.hplm.tunable import EncodedSet
from builder.construct.tasks.objective import Objective
from builder.progress import Report, Step

_ROWS_AT_ONCE = 32
_MOST_WEIGHTS = 64_000_000
"""Each row of a batch has its own copy of the head's weights."""


@dataclass(frozen=True)
class ServedRows:
    """Rows with what a head would read after some layers, and the version's own answers.

    Shape: states `[m, P]` and logits `[m, C]` of each row; m is 1, or the number of words
    """

    states: Sequence[Tensor]
    logits: Sequence[Tensor]
    targets: Sequence[Any]

    def answered_by(self, head: Head) -> list[Tensor]:
        return [head.logits(states) for states in self.states]


def served_rows(
    stack: UpperStack,
    artifact: HplmArtifact,
    after: int,
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
) -> ServedRows:
    """Compute all rows; a head that changes nothing reads the states after `after` layers."""
    width = artifact.head.hidden_size
    reads = Exit(after, Head(torch.eye(width), torch.zeros(width)), 1.0, NEVER)
    ready = stack.ready(0, lambda: artifact)
    states, logits = list[Tensor](), list[Tensor]()
    try:
        at_once = max(1, min(_ROWS_AT_ONCE, _MOST_WEIGHTS // width**2))
        for start in range(0, len(texts.targets), at_once):
            rows = range(start, min(start + at_once, len(texts.targets)))
            early = dict[int, Early]()
            packed = stack.pack([texts.rows[row] for row in rows], [ready] * len(rows))
            middles = [texts.middles[row] for row in rows]
            found = stack.run(packed, [ready] * len(rows), middles, [reads] * len(rows), early.update)
            targets = [texts.targets[row] for row in rows]
            states += _of_rows(objective, [early[index].logits for index in range(len(rows))], targets)
            logits += _of_rows(objective, found, targets)
            report(Step(f"answer the {what} texts", rows[-1] + 1, len(texts.targets)))
    finally:
        stack.release(ready)
    return ServedRows(states, logits, texts.targets)


def _of_rows(objective: Objective[Any], outputs: Sequence[Tensor], targets: Sequence[Any]) -> Iterator[Tensor]:
    for output, target in zip(outputs, targets, strict=True):
        yield from objective.rows(output[None], [target])
