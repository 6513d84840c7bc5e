"""Texts through the layers of a version, as the stack that serves it computes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Rows with what a head would read after one of the layers, and the version's own answers.

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
    after: Sequence[int],
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
    every: int = 1,
) -> list[ServedRows]:
    """Compute all rows once, and return what there is after each of some layers, which are named in ascending order.

    One answer of `every` is kept with the states behind it, evenly spread over all.
    """
    states, logits, done = [list[Tensor]() for _ in after], list[Tensor](), 0
    for row_states, row_logits in _served(stack, artifact, after, objective, texts, what, report):
        kept = slice(-done % every, None, every)
        for of_layer, read in zip(states, row_states, strict=True):
            of_layer.append(read[kept].clone() if every > 1 else read)
        logits.append(row_logits[kept])
        done += len(row_logits)
    return [ServedRows(of_layer, logits, texts.targets) for of_layer in states]


def answered_rows(
    stack: UpperStack,
    artifact: HplmArtifact,
    heads: Mapping[int, Head],
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
) -> list[AnsweredRows]:
    """Compute all rows once, and return what early heads and the version itself answer; no states are kept.

    Args:
        stack: The layers.
        artifact: The version.
        heads: By the number of layers before each, in ascending order.
        objective: The version's task.
        texts: The rows.
        what: What the progress is of.
        report: Told the progress.
    """
    early, full = [list[Tensor]() for _ in heads], list[Tensor]()
    for states, logits in _served(stack, artifact, [*heads], objective, texts, what, report):
        for of_head, head, read in zip(early, heads.values(), states, strict=True):
            of_head.append(head.logits(read))
        full.append(logits)
    return [AnsweredRows(of_head, full) for of_head in early]


def _served(
    stack: UpperStack,
    artifact: HplmArtifact,
    after: Sequence[int],
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the states of each row after each of some layers, and its answers."""
    width = artifact.head.hidden_size
    first = _reading(after, width)
    ready = stack.ready(0, lambda: artifact)
    try:
        at_once = max(1, min(_ROWS_AT_ONCE, _MOST_WEIGHTS // width**2))
        for start in range(0, len(texts.targets), at_once):
            rows = range(start, min(start + at_once, len(texts.targets)))
            packed = stack.pack([texts.rows[row] for row in rows], [ready] * len(rows))
            middles, targets = ([each[row] for row in rows] for each in (texts.middles, texts.targets))
            read: list[list[Tensor]] = [[] for _ in rows]

            def on_early(found: Sequence[tuple[int, Early]], read: list[list[Tensor]] = read) -> None:
                for index, early in found:
                    read[index].append(early.logits)

            logits = stack.run(packed, [ready] * len(rows), middles, [first] * len(rows), on_early)
            states = [_of_rows(objective, of_layer, targets) for of_layer in zip(*read, strict=True)]
            yield from zip(map(list, zip(*states, strict=True)), _of_rows(objective, logits, targets), strict=True)
            report(Step(f"answer the {what} texts", rows[-1] + 1, len(texts.targets)))
    finally:
        stack.release(ready)


def _reading(after: Sequence[int], width: int) -> Exit | None:
    """Return exits after some layers that no row takes, and whose heads change nothing."""
    head, first = Head(torch.eye(width), torch.zeros(width)), None
    for layer in reversed(after):
        first = Exit(layer, head, 1.0, NEVER, later=first)
    return first


def _of_rows(objective: Objective[Any], outputs: Sequence[Tensor], targets: Sequence[Any]) -> Iterator[Tensor]:
    for output, target in zip(outputs, targets, strict=True):
        yield from objective.rows(output[None], [target])
