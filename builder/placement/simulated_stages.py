"""Pipeline stages of a simulated server: its layers are cut, and the next batch enters while one is further on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from backends.errors import InvalidArgumentError

MOST_STAGES = 16


@dataclass(frozen=True)
class Stages:
    """The stages of all roots.

    Attributes:
        shares: What a batch takes in each, as shares of what it takes in all of them.
    """

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shares) <= MOST_STAGES:
            raise InvalidArgumentError(f"a server has 1 to {MOST_STAGES} stages, not {len(self.shares)}")
        if min(self.shares) <= 0 or not math.isclose(sum(self.shares), 1.0):
            shares = ", ".join(f"{share:g}" for share in self.shares)
            raise InvalidArgumentError(f"stages take shares of a batch's time above 0 that add up to 1, not {shares}")

    @classmethod
    def even(cls, count: int) -> Stages:
        """Cut in equal parts."""
        return cls((1 / count,) * count if count > 0 else ())

    @property
    def slowest(self) -> float:
        """The share of the slowest stage, which sets how often a batch may begin."""
        return max(self.shares)

    @property
    def tail(self) -> float:
        """What a batch takes from when the next one may begin to its end, as admission takes it to be."""
        return float(len(self.shares) - 1)


WHOLE = Stages((1.0,))
"""Layers that are not cut."""
