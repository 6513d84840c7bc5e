"""The recorder: what is noted is written, more than fits is counted, and no trouble of the disk reaches a request."""

from __future__ import annotations

import logging
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from traffic_cases import entry

import backends.traffic.recorder as module
from backends.clock import now_us
from backends.errors import CorruptFileError
from backends.scheduling.rejection import Rejection
from backends.traffic.recorder import Asked, TrafficRecorder
from backends.traffic.recording import Recording, read_recording
from backends.traffic.records import ACCEPTED, FAILED
from backends.traffic.settings import TrafficSettings
from backends.traffic.tally import Tally
from small_disk import run_on_small_disk
from waiting import wait_until

ACME, GLOBEX = entry("acme/topic", 1), entry("globex/mood", 2, domain="news")
RECORDED = TrafficSettings(record=True)


def only_file(folder: Path) -> Recording:
    (path,) = folder.iterdir()
    return read_recording(path)


def test_each_column_is_what_was_noted(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path, "lower", RECORDED, write_every_s=0.01)
    at = now_us()
    recorder.note(Asked(at, [ACME], [9], 50_000, "full"), ACCEPTED, [12])
    recorder.note(Asked(at + 1000, [ACME, GLOBEX, ACME], [3, 4, 5]), Rejection.QUEUE_FULL)
    recorder.note(Asked(at + 2000, [GLOBEX], [8], 1, "early"), FAILED)
    recorder.note(Asked(at + 3000, [ACME], [8], is_canary=True), ACCEPTED)
    recorder.close()
    read = only_file(tmp_path)
    rows = [
        (
            int(row["arrived_us"] - read.records["arrived_us"][0]), read.hplms[row["hplm"]].id, int(row["rows"]),
            int(row["tokens"]), int(row["deadline_us"]), read.head.outcomes[row["outcome"]],
            read.head.levels[row["level"]], int(row["is_first"]),
        )
        for row in read.records
    ]  # fmt: skip
    assert rows == [
        (0, "acme/topic", 1, 12, 50_000, "accepted", "full", 1),
        (1000, "acme/topic", 2, 8, 0, "queue_full", "auto", 1),
        (1000, "globex/mood", 1, 4, 0, "queue_full", "auto", 0),
        (2000, "globex/mood", 1, 8, 1, "failed", "early", 1),
    ]
    assert [hplm.family for hplm in read.hplms] == ["mini/shop", "mini/news"]
    assert abs(read.records["arrived_us"][0] / 1e6 - time.time()) < 60
    assert (recorder.num_recorded, recorder.num_lost, read.lost) == (4, 0, 0)


def test_more_than_the_buffer_holds_is_lost_and_counted(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path, "lower", RECORDED, most_notes=100, write_every_s=60.0)
    wait_until(lambda: any(tmp_path.iterdir()))
    for _ in range(250):
        recorder.note(Asked(now_us(), [ACME], [9]), ACCEPTED)
    recorder.close()
    read = only_file(tmp_path)
    assert (len(read.records), read.lost) == (100, 150)


def test_a_note_of_many_rows_takes_no_more_memory_than_one_of_a_row(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path, "lower", RECORDED, write_every_s=60.0)
    wait_until(lambda: any(tmp_path.iterdir()))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(500):
        recorder.note(Asked(now_us(), [ACME] * 1000, [300 + number + row for row in range(1000)]), ACCEPTED)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert recorder.num_waiting == 500
    assert grown - before < 500 * 1000, "a thousand tokens would take thirty times that"
    recorder.close()


def test_many_threads_lose_no_note_and_no_count(tmp_path: Path) -> None:
    recorder = TrafficRecorder(tmp_path, "lower", RECORDED, most_notes=50, write_every_s=0.001)

    def note_often() -> None:
        for _ in range(5_000):
            recorder.note(Asked(now_us(), [ACME], [9]), ACCEPTED)

    threads = [threading.Thread(target=note_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    read = only_file(tmp_path)
    assert len(read.records) + read.lost == 20_000
    assert len(read.records) == recorder.num_recorded


def test_a_process_that_is_asked_nothing_writes_that_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MARK_EVERY_US", 0)
    recorder = TrafficRecorder(tmp_path, "lower", RECORDED, write_every_s=0.01)
    wait_until(lambda: any(tmp_path.iterdir()))

    def marked_us() -> int:
        try:
            read = only_file(tmp_path)
        except CorruptFileError:  # its head is being written
            return 0
        return read.until_us - read.head.began_us

    wait_until(lambda: marked_us() > 100_000)
    assert len(only_file(tmp_path).records) == 0
    recorder.close()


def test_a_folder_that_cannot_be_written_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "traffic").write_text("a file stands where the folder should")
    with caplog.at_level(logging.WARNING):
        recorder = TrafficRecorder(tmp_path / "traffic", "lower", RECORDED)
        for _ in range(10):
            recorder.note(Asked(now_us(), [ACME], [9]), ACCEPTED)
        recorder.close()
    assert recorder.num_recorded == 0
    assert "traffic is not recorded for now" in caplog.text


def test_recording_goes_on_when_the_folder_can_be_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_AFTER_US", 50_000)
    folder = tmp_path / "traffic"
    folder.write_text("in the way")
    recorder = TrafficRecorder(folder, "lower", RECORDED, write_every_s=0.01)
    recorder.note(Asked(now_us(), [ACME], [9]), ACCEPTED)
    wait_until(lambda: recorder.num_lost == 1)
    folder.unlink()
    with caplog.at_level(logging.WARNING):
        wait_until(lambda: "traffic is recorded again; 1 records were lost" in caplog.text)
    recorder.note(Asked(now_us(), [GLOBEX], [9]), ACCEPTED)
    recorder.close()
    read = only_file(folder)
    assert (len(read.records), read.lost) == (1, 1)


def test_a_full_disk_stops_the_recording_and_leaves_whole_blocks(tmp_path: Path) -> None:
    script = """
import sys, time
from pathlib import Path
sys.path.insert(0, str(Path(sys.path[1]) / "unit" / "traffic"))
from backends.clock import now_us
from backends.traffic.recorder import Asked, TrafficRecorder
from backends.traffic.recording import read_recording
from backends.traffic.settings import TrafficSettings
from traffic_cases import entry
folder = Path(sys.argv[1])
recorder = TrafficRecorder(folder, "lower", TrafficSettings(record=True), write_every_s=0.005)
for number in range(200):
    for _ in range(100):
        recorder.note(Asked(now_us(), [entry("acme/topic")], [9]), "accepted")
    time.sleep(0.002)
recorder.close()
paths = list(folder.iterdir())
read = [read_recording(path) for path in paths]
num_records = sum(len(one.records) for one in read)
assert all(one.damage is None for one in read) and 0 < num_records < 20_000, num_records
assert num_records == recorder.num_recorded
assert sum(path.stat().st_size for path in paths) <= 128 * 1024
"""
    stderr = run_on_small_disk(script, tmp_path / "disk", size_kb=128)
    assert stderr.count("traffic is not recorded for now") <= 2
    assert "No space left" in stderr


def test_a_defect_ends_the_recording_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = TrafficRecorder(tmp_path, "lower", RECORDED, write_every_s=0.01)
    recorder.note(Asked(now_us(), [ACME], [9]), "no such outcome")
    wait_until(lambda: "traffic is not recorded any more" in caplog.text)
    recorder.note(Asked(now_us(), [ACME], [9]), ACCEPTED)
    recorder.close()
    assert np.all(only_file(tmp_path).records["rows"] == 1)


def test_a_tally_counts_what_threads_raise() -> None:
    tally = Tally()
    threads = [threading.Thread(target=lambda: [tally.raise_by_one() for _ in range(10_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    reads = [tally.total() for _ in range(100)]
    for thread in threads:
        thread.join()
    assert tally.total() == 40_000
    assert reads == sorted(reads)
