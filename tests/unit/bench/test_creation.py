"""The figures of bench.creation, and the options of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.creation import KINDS, Creation, figures_of, rows_of


def _made(kind: str, seconds: float, early_bytes: int = 0, student_bytes: int = 0) -> Creation:
    return Creation(kind, seconds, 1000, early_bytes, student_bytes)


def test_ratios_are_of_medians_and_bytes_of_the_largest() -> None:
    made = [_made("plain", seconds) for seconds in (10.0, 99.0, 10.0)]
    made += [_made("ladder", seconds, early_bytes=size) for seconds, size in ((21.0, 20), (20.0, 30), (1.0, 10))]
    made += [_made("ladder, no early tuning", 13.0) for _ in range(3)]
    made += [_made("students", 18.0, student_bytes=550) for _ in range(3)]
    figures = figures_of(made, computed_bytes=500)
    assert figures == pytest.approx(
        {
            "create_over_plain": 1.8,
            "ladder_over_plain": 2.0,
            "ladder_without_early_over_plain": 1.3,
            "ladders": 3,
            "early_head_share": 0.03,
            "student_bytes_ratio": 1.1,
        }
    )
    assert [(row["hplm"], row["seconds"], row["slowest s"]) for row in rows_of(made)] == [
        ("plain", 10.0, 99.0),
        ("ladder", 20.0, 21.0),
        ("ladder, no early tuning", 13.0, 13.0),
        ("students", 18.0, 18.0),
    ]


def test_the_options_of_a_kind_are_those_of_the_command() -> None:
    assert KINDS["ladder"].options(1.0, Path("dev.jsonl")) == ("--held-out", "dev.jsonl", "--max-drop", "1.0")
    assert KINDS["plain"].options(1.0, Path("dev.jsonl")) == ()
