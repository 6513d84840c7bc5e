"""How far batches are from their predictions of late, as one factor."""

from __future__ import annotations

import statistics
from collections import deque

_WINDOW = 33
_MIN_RATIOS = 5
_AGREEING, _CLEARLY_AGREEING = 8, 3
_CLEARLY = 1.25
_FURTHEST = 3.0
_LARGEST = 16.0


class Correction:
    """The mean of the latest ratios of measured to predicted time, none of them further from their median than twice.

    A mean in which long batches count more, because backlogs are sums; within bounds, so that a slow batch among its
    like moves it by a thirtieth and a slow moment of less than half a window by less than a half. A model that is wrong
    by a factor is right again after a window.

    A server under another load is on another level at once, and what is admitted meanwhile is promised too much. So a
    few batches in a row that all lie on one side, and not further off than thrice, are believed before. Where three
    take clearly longer, the least of them is believed at once: whoever is late by then was promised too much.
    """

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=_WINDOW)
        self._predicted_us: deque[float] = deque(maxlen=_WINDOW)
        self._factor = 1.0

    @property
    def is_known(self) -> bool:
        return len(self._ratios) >= _MIN_RATIOS

    @property
    def factor(self) -> float:
        """What to multiply a prediction by."""
        return self._factor

    def observe(self, predicted_us: float, measured_us: float) -> None:
        """`predicted_us` is without the correction."""
        if predicted_us <= 0 or measured_us <= 0:
            return
        self._ratios.append(min(max(measured_us / predicted_us, 1 / _LARGEST), _LARGEST))
        self._predicted_us.append(predicted_us)
        if self.is_known:
            middle = statistics.median(self._ratios)
            bounded = [min(max(ratio, middle / 2), 2 * middle) for ratio in self._ratios]
            self._factor = self._new_level(statistics.fmean(bounded, self._predicted_us))

    def _new_level(self, factor: float) -> float:
        """The factor, or where the last few batches agree on another."""
        last = list(self._ratios)[-_AGREEING:]
        level = statistics.median(last)
        agree = len(last) == _AGREEING and (min(last) > factor or max(last) < factor)
        if not agree:
            level = min(last[-_CLEARLY_AGREEING:])
            agree = level > _CLEARLY * factor
        return level if agree and factor / _FURTHEST <= level <= _FURTHEST * factor else factor

    def restart(self) -> None:
        """For a new model: what the old one's predictions were wrong by says nothing about its."""
        self._ratios.clear()
        self._predicted_us.clear()
        self._factor = 1.0
