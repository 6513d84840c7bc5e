"""How far one stage runs ahead of the next, each a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.engine import next_stage
from backends.engine.next_stage import NextStage, StageRows
from backends.server_folder import FOLDER_VARIABLE


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageRows]:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    rows = StageRows(1)
    yield rows
    rows.close()


class Beats:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_a_batch_may_wait_behind_the_one_that_is_computed(rows: StageRows) -> None:
    stage, beats = NextStage(1), Beats()
    stage.wait_for_room(5, beats)
    rows.add(5)
    stage.wait_for_room(3, beats)
    rows.add(3)
    assert not beats.count
    waiting = threading.Thread(target=stage.wait_for_room, args=(4, beats))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and beats.count
    rows.add(-2)  # of the first batch: three of it and three of the second are left
    waiting.join(0.05)
    assert waiting.is_alive()
    rows.add(-3)
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_stage_that_is_not_there_yet_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    stage, beats = NextStage(1), Beats()
    stage.wait_for_room(5, beats)
    stage.wait_for_room(5, beats)
    assert not beats.count


def test_a_stage_that_is_loaded_anew_counts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    stage, beats, before = NextStage(1), Beats(), StageRows(1)
    stage.wait_for_room(7, beats)
    before.add(7)
    stage.wait_for_room(5, beats)
    before.close()
    before.add(-7)  # an answer that is late
    again = StageRows(1)
    stage.wait_for_room(5, beats)
    assert not beats.count and again.count == 0
    again.close()


def test_a_stage_that_hangs_holds_nothing_up_for_good(rows: StageRows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_stage, "_LONGEST_WAIT_S", 0.05)
    rows.add(100)
    begun_s = time.monotonic()
    NextStage(1).wait_for_room(5, Beats())
    assert time.monotonic() - begun_s >= 0.05
