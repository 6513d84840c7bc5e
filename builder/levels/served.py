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


@dataclass(frozen=True)
class AnsweredRows:
    """Rows with an early head's answers and the version's own.

    Shape: early and full `[m, C]` of each row
    """

    early: Sequence[Tensor]
    full: Sequence[Tensor]


def served_rows(
    stack: UpperStack,
    artifact: HplmArtifact,
    after: int,
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
    every: int = 1,
) -> ServedRows:
    """Compute all rows, and keep one answer of `every` with the states behind it, evenly spread over all."""
    states, logits, done = list[Tensor](), list[Tensor](), 0
    for row_states, row_logits in _served(stack, artifact, after, objective, texts, what, report):
        kept = slice(-done % every, None, every)
        states.append(row_states[kept].clone() if every > 1 else row_states)
        logits.append(row_logits[kept])
        done += len(row_logits)
    return ServedRows(states, logits, texts.targets)


def answered_rows(
    stack: UpperStack,
    artifact: HplmArtifact,
    after: int,
    head: Head,
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
) -> AnsweredRows:
    """Compute what an early head and the version itself answer, and keep no states."""
    early, full = list[Tensor](), list[Tensor]()
    for states, logits in _served(stack, artifact, after, objective, texts, what, report):
        early.append(head.logits(states))
        full.append(logits)
    return AnsweredRows(early, full)


def _served(
    stack: UpperStack,
    artifact: HplmArtifact,
    after: int,
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the states and the answers of each row; a head that changes nothing reads the states after some layers."""
    width = artifact.head.hidden_size
    reads = Exit(after, Head(torch.eye(width), torch.zeros(width)), 1.0, NEVER)
    ready = stack.ready(0, lambda: artifact)
    try:
        at_once = max(1, min(_ROWS_AT_ONCE, _MOST_WEIGHTS // width**2))
        for start in range(0, len(texts.targets), at_once):
            rows = range(start, min(start + at_once, len(texts.targets)))
            early = dict[int, Early]()
            packed = stack.pack([texts.rows[row] for row in rows], [ready] * len(rows))
            middles = [texts.middles[row] for row in rows]
            found = stack.run(packed, [ready] * len(rows), middles, [reads] * len(rows), early.update)
            targets = [texts.targets[row] for row in rows]
            states = _of_rows(objective, [early[index].logits for index in range(len(rows))], targets)
            yield from zip(states, _of_rows(objective, found, targets), strict=True)
            report(Step(f"answer the {what} texts", rows[-1] + 1, len(texts.targets)))
    finally:
        stack.release(ready)


def _of_rows(objective: Objective[Any], outputs: Sequence[Tensor], targets: Sequence[Any]) -> Iterator[Tensor]:
    for output, target in zip(outputs, targets, strict=True):
        yield from objective.rows(output[None], [target])
