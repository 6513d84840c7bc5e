"""All benches in one table: each figure beside the committed one and its bar, and benches that fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.kit import suite
from bench.kit.catalogue import bench_named, bench_names, question_of
from bench.kit.entry import at_least, at_most
from bench.kit.suite import Measured, Suite, table


@pytest.mark.parametrize("name", bench_names())
def test_every_bench_has_a_question_and_its_own_name(name: str) -> None:
    found = bench_named(name)
    assert found.name == name
    assert found.question == question_of(name)
    assert found.question.endswith("?")


def test_a_bar_holds_at_its_limit() -> None:
    assert at_least(0.8).holds(0.8)
    assert not at_least(0.8).holds(0.79)
    assert at_most(5).holds(5)
    assert not at_most(5).holds(5.1)


def test_the_table_compares_with_what_is_committed_and_with_the_bar(tmp_path: Path) -> None:
    (tmp_path / "limit.json").write_text(json.dumps({"figures": {"bare_over_peak": 0.9}}))
    measured = [
        Measured("limit", 1.0, {"bare_over_peak": 0.85, "bare_over_peak_short": 0.7, "other": 3.0}),
        Measured("mixing", 1.0, error="no root"),
    ]
    rows = [row for row in table(measured, committed=tmp_path) if row["verdict"] != "not measured"]
    assert [(row["figure"], row.get("committed"), row.get("bar"), row["verdict"]) for row in rows] == [
        ("bare_over_peak", 0.9, "≥ 0.8", "holds"),
        ("bare_over_peak_short", None, "≥ 0.8", "MISSED"),
        ("other", None, None, None),
        ("", None, None, "FAILED: no root"),
    ]


def test_a_bar_without_its_figure_is_named(tmp_path: Path) -> None:
    missing = [row for row in table([Measured("limit", 1.0, {"bare_over_peak": 0.85})], tmp_path) if "now" not in row]
    bars = bench_named("limit").bars
    assert {row["figure"]: row["bar"] for row in missing} == {
        figure: str(bar) for figure, bar in bars.items() if figure != "bare_over_peak"
    }
    assert {row["verdict"] for row in missing} == {"not measured"} and len(bars) > 1


def test_a_bench_that_fails_does_not_end_the_suite_and_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    broken = {"mixing"}

    def status(command: Sequence[str], output: object, limit_s: float | None) -> int:
        name = command[2].removeprefix("bench.")
        started.append(name)
        if name in broken:
            return 1
        Path(command[-1]).write_text(json.dumps({"figures": {"one": 1.0}}))
        return 0

    monkeypatch.setattr(suite, "_status", status)
    measured = list(Suite(tmp_path, is_quick=True).run(["mixing", "limit"], resumes=False))
    assert [(one.bench, one.error) for one in measured] == [("mixing", "exit status 1"), ("limit", None)]
    broken.clear()
    again = list(Suite(tmp_path, is_quick=True).run(["mixing", "limit"], resumes=True))
    assert [(one.bench, one.figures) for one in again] == [("mixing", {"one": 1.0}), ("limit", {"one": 1.0})]
    assert started == ["mixing", "limit", "mixing"]


def test_a_bench_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as output:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        assert suite._status(command, output, limit_s=0.2) is None


def test_benches_are_listed_without_arguments_and_unknown_ones_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["--help"]):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        main()
        listed = capsys.readouterr().out
        assert all(name in listed for name in bench_names())
    unknown = subprocess.run([sys.executable, "-m", "bench", "nothing"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 1
    assert "there is no bench 'nothing'" in unknown.stderr
