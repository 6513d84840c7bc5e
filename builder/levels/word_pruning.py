"""Pruned words in a selection: texts that go on may lose the words that receive least attention at their exit.

It is tried where the texts that fit temperatures show that it saves enough and changes little. It is then a candidate
as others are: what it changes of texts that go on counts against the target, as what early answers lose does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

import numpy as np
import torch

from backends.adapters.ladder import EarlyStep, Pruning
from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.calibration import Floats
from builder.levels.certificate import THRESHOLDS, thresholds
from builder.levels.guarantee import Guarantee
from builder.levels.paired_answers import LabelPairs, PairedAnswers, Pruned
from builder.levels.served import PrunedRows
from builder.levels.target import Target

ALPHAS = (0.8, 0.7, 0.6, 0.5)
"""The one that leaves out most comes first."""
LEAST_SAVED = 0.05
"""Share of a full batch's predicted time that pruning has to save: choosing words and laying out rows anew take time,
and one more candidate divides the risk."""
_MOST_OF_TOLERANCE = 0.5
"""Share of what may be lost that the texts which fit temperatures may lose."""

Pair = tuple[EarlyStep, PairedAnswers]
Prune = Callable[[EarlyStep, float, Indices], PrunedRows]
"""Answers some of the rows without the words that an alpha leaves out behind a step."""


class WordPruning:
    """Tries to prune behind early steps of a classification.

    Args:
        prune: Answers pruned rows.
        lengths: Tokens of each held-out row.
        num_layers: Of the root's upper half.
        fits: The rows that fit temperatures; nothing else decides what is tried, so that the others may certify it.
        target: What may be lost.
    """

    def __init__(self, prune: Prune, lengths: Indices, num_layers: int, fits: Indices, target: Target) -> None:
        self._prune, self._lengths, self._num_layers = prune, lengths, num_layers
        self._fits, self._target = fits, target

    def tried(self, pairs: Sequence[Pair], num_certifying: int) -> list[Pair]:
        """Add the candidates that are worth a try; the others stand before them."""
        plain = [answers for _, answers in pairs if isinstance(answers, LabelPairs) and answers.mixture is None]
        guarantee = self._target.tested(num_candidates=len(pairs) + len(plain), rows=num_certifying)
        if self._target.guarantee == "fleet" or guarantee.least_rows(self._target.tolerance) > num_certifying:
            return [*pairs]  # what the fleet loses has to grow as thresholds fall; and a share of the risk takes rows
        found = [*pairs]
        for step, answers in pairs:
            if isinstance(answers, LabelPairs) and answers.mixture is None:
                pruned = self._worth_a_try(step, answers, guarantee)
                found += [] if pruned is None else [(step, pruned)]
        return found

    def _worth_a_try(self, step: EarlyStep, plain: LabelPairs, guarantee: Guarantee) -> LabelPairs | None:
        """Return the answers to all rows by the first alpha that promises enough; None where none does."""
        fits, every = self._fits, np.arange(len(plain))
        early = step.after / self._num_layers
        confidence = plain.confidence(plain.temperatures(fits)[0])[fits]
        for alpha in ALPHAS:
            tried = self._answered(plain, self._prune(step, alpha, fits), fits, alpha)
            if (sequence := self._sequence(plain, tried, confidence, guarantee)) is None:
                continue
            first, last = sequence
            goes_on = confidence < last
            going_on = float(goes_on.mean()) * (1 - early)
            if going_on * (1 - tried.kept_tokens(fits[goes_on])) < LEAST_SAVED * (early + going_on):
                return None  # the next one leaves out less
            return self._answered(plain, self._prune(step, alpha, every), every, alpha, first)
        return None

    def _sequence(
        self, plain: LabelPairs, tried: LabelPairs, confidence: Floats, guarantee: Guarantee
    ) -> tuple[float, float] | None:
        """Return the thresholds that the fitting rows may begin and end at; None where all lose too much.

        They begin at the one with which they lose least, at the middle of several.
        """
        rows, (leaving, staying, _) = len(confidence), tried.counted(self._target).of(self._fits)
        unpruned = plain.counted(self._target).of(self._fits).staying
        by_all_layers = 0.0 if unpruned is None else float(unpruned.sum())
        may_lose = by_all_layers + _MOST_OF_TOLERANCE * (self._target.tolerance * rows - by_all_layers)
        found = [(each.least, guarantee.lost(each.balance)) for each in thresholds(confidence, leaving, staying)]
        least = min(lost for _, lost in found)
        if least > may_lose:
            return None
        safest = [threshold for threshold, lost in found if lost == least]
        first = safest[len(safest) // 2]
        following = found[THRESHOLDS.index(first) :]
        return first, [threshold for threshold, _ in takewhile(lambda each: each[1] <= may_lose, following)][-1]

    def _answered(
        self, plain: LabelPairs, pruned: PrunedRows, rows: Indices, alpha: float, first: float = THRESHOLDS[0]
    ) -> LabelPairs:
        """Take pruned answers of some rows, and the full ones of the others."""
        logits, kept = [*plain.full.logits], self._lengths.copy()
        for row, each in zip(rows.tolist(), pruned.logits, strict=True):
            logits[row] = each
        kept[rows] = pruned.kept
        is_right = torch.cat(logits).argmax(dim=-1) == torch.cat(list(plain.full.labels))
        answers = replace(plain.full, logits=logits, is_right=is_right.numpy())
        temperature = answers.temperature(rows) if plain.has_labels else 1.0
        return replace(plain, pruned=Pruned(answers, Pruning(alpha, temperature), self._lengths, kept, first))
