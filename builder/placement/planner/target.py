"""The share of the requests that a plan has to answer on time."""

from __future__ import annotations

from dataclasses import dataclass

from backends.errors import InvalidArgumentError

_TOLERANCE = 1e-9
"""A percentage is hardly ever a binary fraction."""


@dataclass(frozen=True)
class Target:
    """A percentage of the requests, above 0 and at most 100."""

    percent: float

    def __post_init__(self) -> None:
        if not 0 < self.percent <= 100:
            given = repr(self.percent).removesuffix(".0")
            raise InvalidArgumentError(f"--target is a percentage above 0 and at most 100, not {given}")

    def __str__(self) -> str:
        return f"{self._digits} %"

    @property
    def num_decimals(self) -> int:
        return len(self._digits.partition(".")[2])

    def is_met_by(self, share: float) -> bool:
        return share >= self.percent / 100 - _TOLERANCE

    @property
    def _digits(self) -> str:
        return f"{self.percent:.12f}".rstrip("0").rstrip(".")
