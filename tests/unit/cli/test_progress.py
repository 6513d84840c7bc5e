"""The progress of builds on the terminal."""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from builder import progress
from builder.progress import Step, in_words, progress_lines
from builder.termination import TerminatedError
from cli.exit_codes import INTERRUPTED, TERMINATED
from cli.progress import resumable_progress


@pytest.mark.parametrize(
    ("duration_s", "words"), [(0.4, "0 s"), (45, "45 s"), (192, "3 min 12 s"), (7500, "2 h 5 min")]
)
def test_durations_in_words(duration_s: float, words: str) -> None:
    assert in_words(duration_s) == words


def test_lines_say_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    report = progress_lines("acme/returns", 0.0, Console(file=out, width=200))
    for seconds, done in ((100.0, 10), (110.0, 20), (130.0, 40), (190.0, 100)):
        now[0] = seconds
        report(Step("tune", done, 100))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[-3:] == [
        "acme/returns: tune 20/100  1 min 20 s left",
        "acme/returns: tune 40/100  1 min 0 s left",
        "acme/returns: tune 100/100",
    ]


def test_the_end_names_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    with resumable_progress("shop", "hplm create") as report:
        report(Step("count", 1, 1))
        time.sleep(0.01)
    assert capsys.readouterr().err.splitlines()[-1] == "shop: done in 0 s; next: hplm create"


def test_an_interrupted_build_has_no_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop, resumable_progress("shop", "hplm create"):
        raise KeyboardInterrupt
    assert stop.value.code == INTERRUPTED
    assert capsys.readouterr().err == "hplm: interrupted; the same command goes on where this one was\n"


def test_an_interrupted_build_names_another_command_to_go_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop, resumable_progress("shop", "hplm infer", "'hplm select shop'"):
        raise TerminatedError
    assert stop.value.code == TERMINATED
    assert capsys.readouterr().err == "hplm: interrupted; 'hplm select shop' goes on where this one was\n"
