"""`bench.student_bursts`: when bursts are, and what its figures are made of; nothing is served here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from backends.errors import InvalidArgumentError
from backends.home import Home
from bench.kit.fates import Fates
from bench.kit.student_run import Run
from bench.student_bursts import QUICK, Asked, Measured, figures_of, student_bursts
from hplm_client import UnavailableError
from loadtest.in_process import Played
from loadtest.labelled import LabelledText
from loadtest.outcome import Outcome
from loadtest.requests import Requests
from loadtest.schedule import Row, Schedule
from loadtest.sender import Effort

SETTINGS = replace(QUICK, cycles=2, cycle_s=10.0, burst_s=4.0)
TIMES_S = (0.0, 1.0, 3.0, 4.0, 13.0, 14.0)


def run_of(levels: Sequence[str | None], right: Sequence[bool | None] = (None,) * 6) -> Run:
    """Answers of these levels a hundredth of a second after their requests; rejected where there is none."""
    schedule = Schedule.of(Row(at_s, "acme/topic", "two words", 100) for at_s in TIMES_S)
    outcomes = []
    for number, (at_s, level, is_right) in enumerate(zip(TIMES_S, levels, right, strict=True)):
        answer = SimpleNamespace(level=level or None, doubtful=False, version=1)
        result = UnavailableError("3 rows of this tenant wait, as many as may") if level is None else answer
        outcomes.append(Outcome.of(number, at_s, at_s + 0.01, result)._replace(right=is_right))  # type: ignore[arg-type]
    played = Played(Requests.of(schedule, outcomes), Effort(wall_s=20.0, cpu_s=0.1))
    return Run(Fates(played), SETTINGS.is_burst(schedule.times_s), changes=3)


def test_bursts_lie_in_the_middle_of_their_cycles() -> None:
    assert SETTINGS.is_burst(np.array([0.0, 2.9, 3.0, 6.9, 7.0, 13.0, 17.0])).tolist() == [0, 0, 1, 1, 0, 1, 0]


def test_bursts_outlast_the_deadlines_on_a_slow_machine() -> None:
    assert SETTINGS.outlasting(0.01) == SETTINGS
    assert SETTINGS.outlasting(1.0).burst_s == 24 and SETTINGS.outlasting(1.0).cycle_s == 60


def test_figures_are_of_rows_in_bursts() -> None:
    full = run_of(["", "", "", None, None, ""])
    unhurried = run_of([""] * 6, [True] * 6).fates.played.requests
    two, one = "students-2", "students-1"
    adaptive = run_of([two, two, one, one, two, one], [True, True, True, False, True, True])
    runs = {"full": [full], "students": [adaptive]}
    found = figures_of(Measured(SETTINGS, 90.0, runs, {"full": 0.5}, [unhurried]))
    assert (found["in_time_full"], found["in_time_students"], found["adaptive_over_full"]) == (0.5, 1.0, 2.0)
    assert found["students_in_bursts"] == pytest.approx(1.25) and found["students_else"] == 2
    assert found["changes_per_minute"] == 3 * 60 / 20
    assert found["accuracy_cost"] == pytest.approx(100 / 6), "also of rows that all layers could not answer in time"
    assert (found["promises_kept"], found["simulated_in_time_full"]) == (1.0, 0.5)
    without_labels = {"full": [run_of([""] * 6)], "students": [run_of([two] * 6)]}
    assert "accuracy_cost" not in figures_of(Measured(SETTINGS, 90.0, without_labels, {}))


def test_where_all_layers_answer_none_in_time_one_row_counts() -> None:
    full, adaptive = run_of(["", "", *[None] * 4]), run_of(["students-1"] * 6)
    found = figures_of(Measured(SETTINGS, 90.0, {"full": [full], "students": [adaptive]}, {}))
    assert (found["in_time_full"], found["adaptive_over_full"]) == (0.0, 4.0)


def test_a_text_with_several_labels_is_not_judged(tmp_path: Path) -> None:
    texts = {
        "acme/topic": [LabelledText("a cat", "pets"), LabelledText("a car", "street"), LabelledText("a cat", "pets")],
        "acme/mood": [LabelledText("a car", "good"), LabelledText("a farm", "good")],
    }
    asked = Asked(Home(tmp_path), "tiny", texts, 2, 0.3, None, is_labelled=True)
    drawn = asked.rows([0.0] * 100, [0] * 100, np.random.default_rng(1))
    label_of = dict(zip(drawn.texts, drawn.labels, strict=True))
    assert label_of == {"a cat": "pets", "a car": None, "a farm": "good"}


def test_a_home_needs_labelled_texts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="--home and --labelled go together"):
        student_bursts.main(["--quick", "--home", "nowhere"])
    with pytest.raises(InvalidArgumentError):
        student_bursts.measure(SimpleNamespace(quick=True, home=None, labelled=["acme/topic=x"], seed=1))  # type: ignore[arg-type]
