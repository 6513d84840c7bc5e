"""Log lines that repeat: a few pass, the rest are counted."""

from __future__ import annotations

import logging
import time

import pytest

from backends.logs import ALIKE_LINES, SAME_LINES, RepeatLimit


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def passed(limit: RepeatLimit, *lines: tuple[object, ...], level: int = logging.ERROR) -> list[str]:
    """What is written of lines that one statement logs."""
    records = [
        logging.LogRecord("backends.lower", level, "service.py", 7, str(line[0]), line[1:], None) for line in lines
    ]
    return [record.getMessage() for record in records if limit.filter(record)]


def test_the_same_line_passes_a_few_times_a_minute_and_is_counted(now: list[float]) -> None:
    limit, line = RepeatLimit(), ("domain %s is damaged", "shop@1")
    assert passed(limit, *[line] * 1000) == ["domain shop@1 is damaged"] * SAME_LINES
    assert passed(limit, ("domain %s is damaged", "farm@1")) == ["domain farm@1 is damaged"]
    now[0] += 61
    assert passed(limit, *[line] * 5) == [
        "domain shop@1 is damaged (and 997 more like it were left out)",
        "domain shop@1 is damaged",
        "domain shop@1 is damaged",
    ]


def test_lines_that_differ_in_their_values_are_bounded_too(now: list[float]) -> None:
    limit = RepeatLimit()
    lines = [("%s is damaged", f"acme/x{number}") for number in range(5000)]
    assert len(passed(limit, *lines)) == ALIKE_LINES
    assert passed(limit, ("another line",)) == ["another line"]
    now[0] += 61
    assert passed(limit, lines[0])[0].endswith("(and 4,900 more like it were left out)")


def test_what_it_remembers_is_bounded(now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.logs._MOST_KEYS", 10)
    limit = RepeatLimit()
    passed(limit, *[(f"line {number}",) for number in range(500)])
    assert len(limit._same) == len(limit._alike) == 10


def test_a_percent_sign_in_a_value_is_harmless(now: list[float]) -> None:
    limit = RepeatLimit()
    assert passed(limit, *[("%s", "100 %s")] * 5) == ["100 %s"] * SAME_LINES
    now[0] += 61
    assert passed(limit, ("%s", "100 %s")) == ["100 %s (and 2 more like it were left out)"]


def test_a_call_whose_values_do_not_fit_is_left_to_the_handler(now: list[float]) -> None:
    limit = RepeatLimit()

    class Unshowable:
        def __str__(self) -> str:
            raise ValueError("no words for it")

        __repr__ = __str__

    calls: list[tuple[object, tuple[object, ...]]] = [("%d rows", ("three",)), ("%s and %s", (1,)), (["a", "list"], ())]
    calls += [("%s", (Unshowable(),)), (Unshowable(), ())]
    for line, (form, values) in enumerate(calls):
        records = [logging.LogRecord("backends", logging.ERROR, "x.py", line, form, values, None) for _ in range(5)]
        assert [limit.filter(record) for record in records] == [True] * SAME_LINES + [False] * 2
    now[0] += 61
    again = logging.LogRecord("backends", logging.ERROR, "x.py", 0, "%d rows", ("three",), None)
    assert limit.filter(again)
    assert again.getMessage() == "%d rows ('three',) (and 2 more like it were left out)"
