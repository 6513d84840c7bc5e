from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from random_run import random_folder, random_outcomes, random_schedule

from loadtest.errors import RunError
from loadtest.results import read_results
from loadtest.run import write_report
from loadtest.run_folder import RunFolder, State


def test_requests_come_back_as_they_were_written(tmp_path: Path, seed: int) -> None:
    schedule, requests = random_schedule(seed), random_folder(tmp_path / "run", seed).read_requests()
    for row, outcome in enumerate(random_outcomes(schedule, seed)):
        assert requests.numbers[row] == outcome.number
        assert requests.sent_s[row] == pytest.approx(outcome.sent_s, abs=1e-6)
        assert requests.done_s[row] == pytest.approx(outcome.done_s, abs=1e-6)
        assert requests.scheduled_s[row] == pytest.approx(schedule.times_s[outcome.number], abs=1e-6)
        assert requests.deadline_ms[row] == schedule.deadline_ms(outcome.number)
        assert requests.hplms[row] == schedule.hplms[int(schedule.hplm_of[outcome.number])]
        assert (requests.kinds[row], requests.reasons[row]) == (outcome.kind, outcome.reason)
        assert (requests.levels[row], bool(requests.doubtful[row])) == (outcome.level, outcome.doubtful)
        right = None if np.isnan(requests.right[row]) else bool(requests.right[row])
        assert right == outcome.right


def test_a_run_of_an_earlier_release_has_no_levels(tmp_path: Path, seed: int) -> None:
    folder = random_folder(tmp_path / "run", seed)
    path = folder.path / "requests.csv"
    path.write_text("".join(line.rsplit(",", 3)[0] + "\n" for line in path.read_text().splitlines()))
    results = write_report(folder)
    assert (results.summary["by_level"], results.summary["accuracy"], results.summary["doubtful"]) == ([], None, None)
    assert results.summary["answered"] > 0


@pytest.mark.parametrize("cut_bytes", [1, 7, 30])
def test_a_line_that_was_cut_short_is_not_read(tmp_path: Path, seed: int, cut_bytes: int) -> None:
    folder = random_folder(tmp_path / "run", seed)
    whole = folder.read_requests()
    path = folder.path / "requests.csv"
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    assert len(folder.read_requests()) == len(whole) - 1


def test_a_letter_that_was_cut_is_not_read(tmp_path: Path, seed: int) -> None:
    folder = random_folder(tmp_path / "run", seed)
    whole = folder.read_requests()
    path = folder.path / "requests.csv"
    path.write_bytes(path.read_bytes() + "the queue is full …".encode()[:-1])
    assert len(folder.read_requests()) == len(whole)


def test_a_killed_run_is_reported_until_where_it_came(tmp_path: Path, seed: int) -> None:
    folder = random_folder(tmp_path / "run", seed, State.RUNNING)
    path = folder.path / "requests.csv"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    results = write_report(folder)
    last_s = float(results.requests.done_s.max())
    schedule = random_schedule(seed)
    assert results.summary["planned"] == sum(at_s <= last_s for at_s in schedule.times_s.tolist()) < len(schedule)
    assert "This run was killed" in folder.report.read_text()


def test_a_run_without_any_answer_has_a_report(tmp_path: Path, seed: int) -> None:
    folder = random_folder(tmp_path / "run", seed, State.INTERRUPTED, stopped_s=0.0)
    (folder.path / "requests.csv").write_text("")
    results = write_report(folder)
    assert results.summary["answered"] == 0
    assert not results.summary["sending"]["valid"]
    page = folder.report.read_text()
    assert "interrupted" in page
    assert "nothing to judge" in page


def test_only_a_new_or_empty_folder_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("")
    for name in ("full", "file"):
        with pytest.raises(RunError, match="exists already"):
            RunFolder.create(tmp_path / name)


def test_what_is_no_run_is_said_so(tmp_path: Path, seed: int) -> None:
    with pytest.raises(RunError, match="no folder of a load test"):
        RunFolder.open(tmp_path)
    folder = random_folder(tmp_path / "run", seed)
    (folder.path / "requests.csv").write_text("number,what\n1,2\n")
    with pytest.raises(RunError, match="damaged"):
        read_results(folder)
    (folder.path / "run.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(RunError, match="another format"):
        read_results(folder)
    (folder.path / "schedule.npz").write_bytes(b"no archive")
    with pytest.raises(RunError, match="cannot be read"):
        folder.read_schedule()
