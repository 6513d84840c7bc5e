"""A candidate of a selection: texts may leave after one layer, by one head, and a threshold is certified or none."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backends.adapters.ladder import EarlyStep, Ladder
from backends.registry.entries import PRUNED_BY_ATTENTION
from builder.construct.hplm.trainable import Indices
from builder.construct.tasks.calibration import Floats, is_at_bound
from builder.levels.certificate import Certificate, balance_of, certify, least_tolerance, thresholds
from builder.levels.figures import all_rounded, rounded, rounded_ms
from builder.levels.guarantee import Balance, Each, EachInParts, Guarantee
from builder.levels.ladder_costs import LadderCosts
from builder.levels.paired_answers import Counted, PairedAnswers
from builder.levels.profile import CandidateProfile, CurvePoint
from builder.levels.target import Target

CALIBRATED = "calibrated"
"""The figure that says where no temperature fits, so that confidences need not be true."""
_PER_UNIT = 10_000
_LEAST_GAIN = 0.02
"""Share of the layers' work; a head for rows none of which leaves has cost up to 4 %, mostly less (bench.depth)."""
_SHOWN_TOLERANCES = 3.0
_MOST_POINTS = 40
"""Of a curve: one for each of as many parts of the rows."""


@dataclass(frozen=True)
class Trial:
    """What all candidates of a selection are judged by.

    Attributes:
        target: What may be lost.
        num_candidates: The risk is divided among them, as the best one is taken.
        fits: The rows that fit what decides which rows leave, and how full answers are mixed. The confidences that
            answers report are fitted by all rows.
        certifies: The rows that certify.
        num_layers: Of the root's upper half.
    """

    target: Target
    num_candidates: int
    fits: Indices
    certifies: Indices
    num_layers: int


class Candidate:
    """One early step with its calibration and its certificate, if any threshold passes.

    Args:
        step: With the head and its layer; temperature and threshold are found here.
        answers: To all held-out rows.
        trial: What it is judged by.
    """

    def __init__(self, step: EarlyStep, answers: PairedAnswers, trial: Trial) -> None:
        self._answers, self._trial = answers, trial
        self._temperature, self._of_full = answers.temperatures(trial.fits)
        reported, of_full = answers.temperatures(np.arange(len(answers)))
        self._reported = None if answers.in_parts else reported  # a regression reports no confidence
        if answers.ensemble is None:  # or else full answers are mixed as they were certified
            self._of_full = of_full
        self._confidence: Floats = answers.confidence(self._temperature)[trial.certifies]
        self.after = step.after
        self.certificate = self._certified()
        threshold = step.threshold if self.certificate is None else self.certificate.threshold
        self._step = replace(
            step, temperature=self._temperature, threshold=threshold, reported_temperature=self._reported
        )

    @property
    def counted(self) -> Counted:
        """What the target counts of the certifying rows."""
        return self._answers.counted(self._trial.target).of(self._trial.certifies)

    def ladder(self, figures: dict[str, Any]) -> Ladder:
        return Ladder(self._step, self._of_full, figures, self._answers.ensemble, self._answers.pruning)

    @property
    def alpha(self) -> float | None:
        """Which words rows that go on lose; None where they keep all."""
        return None if self._answers.pruning is None else self._answers.pruning.alpha

    @property
    def full_weight(self) -> float | None:
        """Weight of the full answers to rows that go on; None where they stand alone."""
        return None if self._answers.ensemble is None else self._answers.ensemble.full_weight

    @property
    def least_depth(self) -> float:
        """The share of the layers that an early answer takes."""
        return self.after / self._trial.num_layers

    @property
    def mean_depth(self) -> float:
        """The share of the layers that rows pass in the mean, all where nothing is certified."""
        return 1.0 if self.certificate is None else 1 - self.certificate.exit_share * (1 - self.least_depth)

    @property
    def mean_work(self) -> float:
        """The share of the layers that tokens pass in the mean, of which rows that go on may lose some."""
        if self.certificate is None:
            return 1.0
        return self.mean_depth - (1 - self.kept_tokens) * (self.mean_depth - self.least_depth)

    @property
    def gains(self) -> bool:
        """Whether it is certified and saves more work than its head takes, or answers better."""
        saves = self.mean_work <= 1 - _LEAST_GAIN
        return self.certificate is not None and (saves or self.full_weight is not None)

    @property
    def kept_tokens(self) -> float:
        """The share of their tokens that rows keep that go on, in the mean."""
        certifies = self._trial.certifies
        return self._answers.kept_tokens(certifies[self._confidence < self._step.threshold])

    @property
    def figures(self) -> dict[str, Any]:
        """What is known of it whether a threshold passes or not."""
        reported = self._reported or self._temperature
        calibrated = {CALIBRATED: False} if is_at_bound(reported) else {}
        return {**all_rounded(self._answers.figures(self._trial.certifies, reported)), **calibrated}

    @property
    def certified(self) -> dict[str, Any]:
        """What is known of it once a threshold has passed."""
        if self.certificate is None:
            return {}
        found, leaves = self.certificate, self._confidence >= self.certificate.threshold
        certifies = self._trial.certifies
        return {
            "threshold": rounded(found.threshold),
            "certified_on": found.rows,
            "counted": rounded(found.balance.harms) if self._answers.in_parts else found.balance.harms,
            **({"put_right_early": found.balance.helps} if self._guarantee.counts_helps else {}),
            "bound": rounded(found.bound),
            "answered_early": rounded(found.exit_share),
            "disagreement": rounded(self._disagreement(certifies[leaves])),
            **all_rounded(self._answers.as_served(certifies, leaves)),
            **({} if self.alpha is None else PRUNED_BY_ATTENTION),
            "mean_layers": rounded(self._trial.num_layers * self.mean_depth),
        }

    def profile(self, costs: LadderCosts, tokens: float) -> CandidateProfile:
        """Return what people compare candidates by, for texts of so many tokens."""
        found = self.certificate
        return CandidateProfile(
            after=self.after,
            threshold=None if found is None else rounded(found.threshold),
            answered_early=0.0 if found is None else rounded(found.exit_share),
            lost=None if found is None else rounded(self._guarantee.lost(found.balance) / found.rows),
            bound=rounded(self.least_tolerance if found is None else found.bound),
            alone_ms=rounded_ms(costs.alone_ms(tokens, self.mean_depth, self.mean_work)),
            full_batch_ms=rounded_ms(costs.full_batch_ms(self.mean_work)),
            memory_bytes=self._step.head.size_bytes,
            curve=self._curve(),
            full_weight=self.full_weight,
            alpha=self.alpha,
            kept_tokens=None if self.alpha is None or found is None else rounded(self.kept_tokens),
        )

    def _curve(self) -> list[CurvePoint]:
        """Return what thresholds mean, up to those that lose far more than may be."""
        counted, rows, guarantee = self.counted, len(self._confidence), self._guarantee
        most = _SHOWN_TOLERANCES * self._trial.target.tolerance
        curve = dict[int, CurvePoint]()
        for each in thresholds(self._confidence, counted.leaving, counted.staying, self._answers.first_threshold):
            share = each.leaving * _MOST_POINTS // rows
            lost = guarantee.lost(each.balance)
            if lost > most * rows:
                break
            if share not in curve:
                figures = each.least, each.leaving / rows, lost / rows, guarantee.bound(each.balance, rows)
                curve[share] = CurvePoint(*map(rounded, figures))
        return [*curve.values()]

    @property
    def least_tolerance(self) -> float:
        """The least tolerance that some threshold would keep on these texts, rounded up; 1 where none could.

        It is tested as a target of that tolerance is, which may be otherwise than this one.
        """
        counted, first, found = self.counted, self._answers.first_threshold, self._trial.target.tolerance
        while True:
            tested = self._tested(found)
            least = least_tolerance(self._confidence, counted.leaving, tested, counted.staying, counted.changes, first)
            least = math.ceil(least * _PER_UNIT) / _PER_UNIT
            if least <= found or least >= 1:
                return min(least, 1.0)
            found = least

    @property
    def _guarantee(self) -> Guarantee:
        return self._tested(self._trial.target.tolerance)

    def _tested(self, tolerance: float) -> Guarantee:
        trial = self._trial
        target = replace(trial.target, tolerance=tolerance)
        return target.tested(self._answers.in_parts, trial.num_candidates, len(trial.certifies))

    def _certified(self) -> Certificate | None:
        counted, tolerance, first = self.counted, self._trial.target.tolerance, self._answers.first_threshold
        return certify(
            self._confidence, counted.leaving, tolerance, self._guarantee, counted.staying, counted.changes, first
        )

    def _disagreement(self, leaving: Indices) -> float:
        """Return a bound of the share of early answers that differ from the full ones, for the running audit."""
        risk, different = self._trial.target.risk, self._answers.different[leaving]
        tested = EachInParts(risk) if self._answers.in_parts else Each(risk)
        return tested.bound(Balance(different.sum().item()), len(different))


def all_layers(
    counted: Counted, guarantee: Guarantee, num_layers: int, costs: LadderCosts, tokens: float
) -> CandidateProfile:
    """Return the profile of answers by all layers, which lose what rows lose that stay."""
    balance, rows = Balance(0) if counted.staying is None else balance_of(counted.staying), len(counted.leaving)
    return CandidateProfile(
        after=num_layers,
        threshold=None,
        answered_early=0.0,
        lost=rounded(guarantee.lost(balance) / rows),
        bound=0.0 if counted.staying is None else rounded(guarantee.bound(balance, rows)),
        alone_ms=rounded_ms(costs.alone_ms(tokens, 1.0, 1.0)),
        full_batch_ms=rounded_ms(costs.full_batch_ms(1.0)),
        memory_bytes=0,
    )
