"""How far rows are from what a slow, obvious reference says, over many random batches."""

from __future__ import annotations

import statistics

from torch import Tensor

_ONE_IN = 1000


class RowErrors:
    """Errors of rows, as shares of the largest logit that the reference gives (of 1 where that is smaller).

    Random rows of random weights have long tails in low precision, so one row in a thousand, or one of fewer rows, may
    be beyond the tolerance. A single wrong row can hide there: with another's adapters one row in four was off by less
    than .6. So each test also runs in fp32, where no row may be.

    Args:
        largest: What no error may reach; the tolerance where there is no tail.
    """

    def __init__(self, seed: int, tolerance: float, largest: float | None = None) -> None:
        self._seed, self._tolerance, self._largest = seed, tolerance, largest or tolerance
        self._errors: list[float] = []

    def add(self, got: Tensor, expected: Tensor) -> None:
        error = float((got - expected).abs().max()) / max(1.0, float(expected.abs().max()))
        self._errors.append(error)
        assert error <= self._largest, f"seed {self._seed}, logits {len(self._errors)}: {got}, not {expected}"

    def require(self, median: float | None = None) -> None:
        """Fail if too many of the errors are beyond the tolerance, or their median beyond its own."""
        beyond = sum(error > self._tolerance for error in self._errors)
        assert beyond <= max(1, len(self._errors) // _ONE_IN), f"seed {self._seed}: {beyond} of {len(self._errors)}"
        assert median is None or statistics.median(self._errors) <= median, f"seed {self._seed}"
