"""Figures of a selection as people read them."""

from __future__ import annotations

from collections.abc import Mapping

_DIGITS = 4
_DIGITS_OF_MS = 2


def rounded(number: float) -> float:
    return round(float(number), _DIGITS)


def rounded_ms(number: float | None) -> float | None:
    return None if number is None else round(number, _DIGITS_OF_MS)


def all_rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: rounded(value) for name, value in figures.items()}
