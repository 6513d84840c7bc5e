"""What `bench.served` makes of two passes."""

from __future__ import annotations

import pytest

from bench.served import Pass, Question, figures
from bench.served import served as bench_served
from hplm_client import Classification


def answer(label: str, exact: bool = True) -> Classification:
    return Classification("a/b", 1, "classification", False, exact, label, 1.0, {label: 1.0})


QUESTIONS = [Question("a/b", "one", "x"), Question("a/b", "two", "x"), Question("c/d", "three", "y")]


def test_the_figures_compare_exact_first_and_second() -> None:
    first = Pass([answer("x"), answer("z", exact=False), answer("y")], [2.0, 4.0, 6.0], 3.0, 0.4, 10_000)
    second = Pass([answer("x"), answer("x"), answer("y")], [2.0, 2.0, 2.0], 1.0, 0.0, 0)
    found = figures(QUESTIONS, {"a/b": 60.0, "c/d": 100.0}, first, second)
    assert found["first_pass_points"] == pytest.approx(10.0)
    assert found["first_pass_p50_ratio"] == pytest.approx(2.0)
    assert found["fragment_us"] == pytest.approx(200.0)
    assert found["same_answer_share"] == pytest.approx(2 / 3)
    assert (found["missing_share"], found["inexact_answers"]) == (0.4, 1.0)


def test_without_data_it_says_so_in_one_line() -> None:
    with pytest.raises(SystemExit, match=r"bench\.served: --data names a folder"):
        bench_served.main(["--quick"])
