"""Texts through the layers of a version, as the stack that serves it computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep
from backends.engine.exits import NEVER, Early, Exit
from backends.engine.pruning import Prunable
from backends.engine.stack import UpperStack
from backends.engine.student_layers import StudentLayers, StudentRow
from backends.root.tokenizer import RootTokenizer, Text
from backends.root.word_marks import WordMarks
from builder.construct.hplm.trainable import Indices
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


@dataclass(frozen=True)
class PrunedRows:
    """Answers to rows that have lost words.

    Shape: logits `[1, C]` of each row; kept `[N]`, how many of its tokens each has kept
    """

    logits: Sequence[Tensor]
    kept: Indices


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


def pruned_rows(
    stack: UpperStack,
    artifact: HplmArtifact,
    step: EarlyStep,
    alpha: float,
    objective: Objective[Any],
    texts: EncodedSet,
    marks: Sequence[WordMarks],
    rows: Indices,
    report: Report,
) -> PrunedRows:
    """Compute rows that all go on behind an early step and lose words there.

    Args:
        stack: The layers.
        artifact: The version.
        step: With its head.
        alpha: Which words they lose.
        objective: The version's task.
        texts: All rows.
        marks: Where their words begin.
        rows: The numbers of those that are computed.
        report: Told the progress.
    """
    head, logits, kept = step.served_head.map(stack.own), list[Tensor](), list[float]()

    def exit_of(row: int) -> Exit:
        return Exit(step.after, head, 1.0, NEVER, prunable=Prunable(alpha, marks[row]))

    for batch in _batches(stack, artifact, exit_of, objective, texts, "shortened", report, rows.tolist()):
        kept += [1.0 if early.kept is None else early.kept for (early,) in batch.early]
        logits += batch.logits
    return PrunedRows(logits, np.rint(kept * texts.lengths[rows]).astype(np.int64))


def student_answers(
    layers: StudentLayers, artifact: HplmArtifact, objective: Objective[Any], texts: EncodedSet, report: Report
) -> list[list[Tensor]]:
    """Compute what one student answers, the first two, and so on, up to the version's best number.

    Shape: `[m, C]` of each row
    """
    ready, total = layers.ready(0, lambda: artifact), len(texts.targets)
    try:
        counts = range(1, ready.best + 1)
        found: list[list[Tensor]] = [[] for _ in counts]
        at_once = max(1, _ROWS_AT_ONCE // ready.best)
        for start in range(0, total, at_once):
            rows = range(start, min(start + at_once, total))
            packed = layers.pack([texts.rows[row] for _ in counts for row in rows], [ready] * len(rows) * len(counts))
            requested = [StudentRow(ready, count, texts.middles[row]) for count in counts for row in rows]
            logits, targets = layers.run(packed, requested), [texts.targets[row] for row in rows]
            for index, of_count in enumerate(found):
                of_count += _of_rows(objective, logits[index * len(rows) : (index + 1) * len(rows)], targets)
            report(Step("answer the held-out texts by students", rows.stop, total))
        return found
    finally:
        layers.release(ready)


def word_marks(tokenizer: RootTokenizer, texts: Sequence[Text]) -> list[WordMarks]:
    """Return where the words of texts begin."""
    rows = tokenizer.encode(texts)
    return np.split(tokenizer.word_marks(rows.token_ids), rows.row_offsets[1:-1])


@dataclass(frozen=True)
class _Batch:
    """Some of the rows, what was known of them at their exits, and their answers."""

    rows: Sequence[int]
    early: Sequence[Sequence[Early]]
    logits: Sequence[Tensor]


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
    first = _reading(after, Head(torch.eye(width := artifact.head.hidden_size), torch.zeros(width)).map(stack.own))
    for batch in _batches(stack, artifact, lambda _: first, objective, texts, what, report):
        read = [[early.logits for early in of_row] for of_row in batch.early]
        targets = [texts.targets[row] for row in batch.rows]
        states = [_of_rows(objective, of_layer, targets) for of_layer in zip(*read, strict=True)]
        yield from zip(map(list, zip(*states, strict=True)), batch.logits, strict=True)


def _batches(
    stack: UpperStack,
    artifact: HplmArtifact,
    exit_of: Callable[[int], Exit | None],
    objective: Objective[Any],
    texts: EncodedSet,
    what: str,
    report: Report,
    chosen: Sequence[int] | None = None,
) -> Iterator[_Batch]:
    """Compute all rows once, or those that are chosen, each with its exit.

    A batch leaves room for the weights of its rows' heads.
    """
    chosen = range(len(texts.targets)) if chosen is None else chosen
    ready = stack.ready(0, lambda: artifact)
    try:
        at_once = max(1, min(_ROWS_AT_ONCE, _MOST_WEIGHTS // artifact.head.hidden_size**2))
        for start in range(0, len(chosen), at_once):
            rows = chosen[start : start + at_once]
            packed = stack.pack([texts.rows[row] for row in rows], [ready] * len(rows))
            early: list[list[Early]] = [[] for _ in rows]

            def on_early(found: Sequence[tuple[int, Early]], early: list[list[Early]] = early) -> None:
                for index, each in found:
                    early[index].append(each)

            middles, exits = [texts.middles[row] for row in rows], list(map(exit_of, rows))
            logits = stack.run(packed, [ready] * len(rows), middles, exits, on_early)
            yield _Batch(rows, early, [*_of_rows(objective, logits, [texts.targets[row] for row in rows])])
            report(Step(f"answer the {what} texts", start + len(rows), len(chosen)))
    finally:
        stack.release(ready)


def _reading(after: Sequence[int], head: Head) -> Exit | None:
    """Return exits after some layers that no row takes."""
    first = None
    for layer in reversed(after):
        first = Exit(layer, head, 1.0, NEVER, later=first)
    return first


def _of_rows(objective: Objective[Any], outputs: Sequence[Tensor], targets: Sequence[Any]) -> Iterator[Tensor]:
    for output, target in zip(outputs, targets, strict=True):
        yield from objective.rows(output[None], [target])
