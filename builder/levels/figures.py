"""Figures of a selection as people read them."""

from __future__ import annotations

from collections.abc import Mapping

_DIGITS = 4


def rounded(number: float) -> float:
    return round(float(number), _DIGITS)


def all_rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(value) for name, value in figures.items()}
