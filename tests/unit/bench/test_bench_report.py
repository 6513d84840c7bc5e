"""Pages of benches: parts with other columns have tables of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.kit.report import Report


def page(*rows: Mapping[str, Any]) -> str:
    report = Report(bench="some", seed=1, settings={}, figures={"figure_s": 2.0}, rows=rows, machine={"cpu": "one"})
    return report.markdown()


def test_parts_have_tables_of_their_own() -> None:
    found = page({"part": "a", "x": 1}, {"part": "b", "x": 2}, {"part": "c", "y": 3})
    assert "| part | x |\n| --- | --- |\n| a | 1 |\n| b | 2 |\n\n| part | y |" in found
    assert "| part | y |\n| --- | --- |\n| c | 3 |\n\n| figure" in found


def test_rows_without_parts_are_one_table() -> None:
    found = page({"x": 1}, {"x": 2, "y": 3})
    assert "| x | y |\n| --- | --- |\n| 1 |  |\n| 2 | 3 |\n\n| figure" in found


def test_a_bench_may_have_no_rows() -> None:
    assert "| figure_s | 2 |" in page()
