"""Percentages of a plan: none says more than there is."""

from __future__ import annotations

import pytest

from builder.placement.planner.percentage import percentage


@pytest.mark.parametrize(
    ("share", "digits", "written"),
    [
        (1.0, 1, "100.0 %"),
        (0.99999, 1, "99.9 %"),
        (0.99999, 3, "99.999 %"),
        (0.29, 1, "29.0 %"),
        (0.57, 2, "57.00 %"),
        (1e-7, 1, "0.0 %"),
        (0.0, 1, "0.0 %"),
        (2 / 3, 1, "66.6 %"),
    ],
)
def test_a_percentage_is_rounded_down(share: float, digits: int, written: str) -> None:
    assert percentage(share, digits) == written
