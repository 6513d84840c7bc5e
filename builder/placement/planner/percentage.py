"""Percentages that are rounded down: 100 % stands only where nothing is missing."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal


def percentage(share: float, digits: int = 1) -> str:
    """Write a share, such as 0.9876 as `98.7 %`."""
    # The shortest decimals that are this float: 0.29 times 100 is 28.999… in floats.
    return f"{(100 * Decimal(repr(float(share)))).quantize(Decimal(1).scaleb(-digits), ROUND_DOWN)} %"
