"""Ensembles of levels: what rows that go on are answered by may be mixed with their early answers.

Mixing is tried where it puts more of the texts right that fit temperatures than it puts wrong, by so much that the
texts that certify are likely to prove it. It is then a candidate as others are: its thresholds pass as long as the
target is kept, and rows that go on are proven to be answered better than by all layers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from backends.adapters.ladder import EarlyStep, Ensemble
from backends.engine.ensemble import log_mixed
from builder.construct.hplm.trainable import Indices
from builder.levels.guarantee import Guarantee
from builder.levels.material import ONE_IN_FITS
from builder.levels.paired_answers import LabelPairs, Mixture, PairedAnswers
from builder.levels.target import Target

FULL_WEIGHTS = (0.9, 0.75, 0.5)
"""The one nearest to full answers alone comes first, and wins a draw."""
_CERTIFYING_OF_FITTING = ONE_IN_FITS - 1
"""How many rows certify for each that fits."""

Pair = tuple[EarlyStep, PairedAnswers]


def with_ensembles(pairs: Sequence[Pair], fits: Indices, num_certifying: int, target: Target) -> list[Pair]:
    """Add to the candidates of a classification those with an ensemble that are worth a try.

    Args:
        pairs: Steps and their answers.
        fits: The rows that fit temperatures; nothing else decides what is tried, so that the others may certify it.
        num_certifying: How many rows certify.
        target: What may be lost.
    """
    guarantee = target.tested(num_candidates=2 * len(pairs))
    if target.loss == "agreement" or guarantee.least_rows(target.tolerance) > num_certifying:
        return [*pairs]  # only full answers agree with full ones; and a share of the risk takes more rows
    found: list[Pair] = []
    for step, answers in pairs:
        found.append((step, answers))
        mixed = _fitted(answers, fits, guarantee) if isinstance(answers, LabelPairs) else None
        if mixed is not None:
            found.append((step, mixed))
    return found


def _fitted(pairs: LabelPairs, fits: Indices, guarantee: Guarantee) -> LabelPairs | None:
    """Return the mixture that puts most of the rows right that it may be fitted to; None where that proves nothing."""
    if not pairs.has_labels:
        return None
    best = max((_mixed(pairs, weight, fits) for weight in FULL_WEIGHTS), key=lambda each: _gained(each, fits))
    helped, harmed = (_CERTIFYING_OF_FITTING * int(each[fits].sum()) for each in best.changes)
    return best if guarantee.proves_better(helped, harmed) else None


def _gained(pairs: LabelPairs, rows: Indices) -> int:
    helped, harmed = (int(each[rows].sum()) for each in pairs.changes)
    return helped - harmed


def _mixed(pairs: LabelPairs, full_weight: float, fits: Indices) -> LabelPairs:
    early, full = (torch.cat(list(each.logits)).numpy() for each in (pairs.early, pairs.full))
    logits = torch.from_numpy(log_mixed(early, full, *pairs.temperatures(fits), full_weight))
    is_right = (logits.argmax(dim=-1) == torch.cat(list(pairs.full.labels))).numpy()
    answers = replace(pairs.full, logits=list(logits[:, None]), is_right=is_right)
    return replace(
        pairs, mixture=Mixture(answers, Ensemble(full_weight, answers.temperature(np.arange(len(answers.is_right)))))
    )
