"""The cost model of one root as the running engine knows it: profiled and corrected, or fitted while it serves."""

from __future__ import annotations

from collections import deque

from backends.scheduling.correction import Correction
from backends.scheduling.cost_model import OPTIMISTIC, BatchShape, CostModel
from backends.scheduling.fitting import Sample, fit

_FIRST_FIT = 16
_WINDOW = 256
_FIT_EVERY = 64
_ANCHORS = tuple(
    BatchShape(rows, rows * length, rows * length * length, adapters)
    for rows, length, adapters in ((1, 8, 1), (1, 128, 1), (64, 8, 1), (64, 8, 64), (64, 64, 8))
)
"""Shapes that live batches may never have; without them a fit on batches all alike could say anything elsewhere."""


class LiveCosts:
    """Predicts, and learns from every batch. Without a profile it begins with a model that refuses nobody.

    Batches that run in a crowd, and those that do not, are corrected apart: a crowd comes at once, and what is promised
    to the first of it would be by the batches before, which were up to three times as fast.
    """

    def __init__(self, profiled: CostModel | None = None) -> None:
        self._is_profiled = profiled is not None
        self._model = profiled or OPTIMISTIC
        self._corrections = {is_crowded: Correction() for is_crowded in (False, True)}
        self._is_crowded = False
        self._recent: deque[Sample] = deque(maxlen=_WINDOW)
        self._until_fit = _FIRST_FIT
        self._current = self._model

    @property
    def model(self) -> CostModel:
        """With all that was learned so far."""
        return self._current

    def predict_us(self, shape: BatchShape) -> float:
        return self._current.predict_us(shape)

    def uncorrected_us(self, shape: BatchShape) -> float:
        """By the profile, or the latest fit, alone."""
        return self._model.predict_us(shape)

    def expect(self, is_crowded: bool) -> None:
        """Whether the next batches will run in a crowd (`crowd`)."""
        if is_crowded != self._is_crowded:
            self._is_crowded = is_crowded
            self._current = self._model.scaled(self._factor)

    def observe(self, shape: BatchShape, measured_us: float) -> None:
        """A batch has run, in what was expected last."""
        if measured_us <= 0:
            return
        self._corrections[self._is_crowded].observe(self.uncorrected_us(shape), measured_us)
        if not self._is_profiled:
            self._recent.append(Sample(shape, measured_us))
            self._until_fit -= 1
            if self._until_fit == 0:
                self._refit()
        self._current = self._model.scaled(self._factor)

    @property
    def _factor(self) -> float:
        """Where batches of one kind are not known yet, that of the other."""
        own, other = self._corrections[self._is_crowded], self._corrections[not self._is_crowded]
        return own.factor if own.is_known or not other.is_known else other.factor

    def _refit(self) -> None:
        anchors = [Sample(shape, self._current.predict_us(shape)) for shape in _ANCHORS]
        self._model = fit([*self._recent, *anchors])
        for correction in self._corrections.values():
            correction.restart()
        self._until_fit = _FIT_EVERY
