"""A slow server must not slow the clock: requests leave when they are due, however many wait for their answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from builder.serving import TritonServer
from hplm_client.address import Protocol
from living_processes import children_with
from loadtest.results import Results
from loadtest.run import LoadTest, Playback, Progress, Watcher
from loadtest.run_folder import RunFolder
from loadtest.schedule import Schedule
from loadtest.sender import Target
from loadtest.workers import Workers

pytestmark = [pytest.mark.server, pytest.mark.serial]
SLOW_MS = 4_000
TIMEOUT_S = 120.0
RATE_PER_S = 150
SLOW_ROWS, QUICK_ROWS = 300, 100
# A sender that waits for an answer before the next request is late by SLOW_MS; a busy machine by far less than half.
BOUND_S = SLOW_MS / 2000


def slow_then_quick() -> Schedule:
    """First only slow requests, none of which is answered before the last one is due; then quick ones among them."""
    count = SLOW_ROWS + QUICK_ROWS
    hplm_of = np.array([0] * SLOW_ROWS + [0, 1] * (QUICK_ROWS // 2), np.int64)
    zeros = np.zeros(count, np.int64)
    return Schedule(
        np.arange(count) / RATE_PER_S, hplm_of, zeros, zeros + 3, None, (f"slow/{SLOW_MS}", "acme/topics"), ("late",)
    )


def played(folder: Path, server: TritonServer, protocol: Protocol, workers: int) -> Results:
    url = server.grpc_url if protocol == "grpc" else server.http_url
    seen: list[Progress] = []
    watcher = Watcher(lambda here, needed: None, seen.append)
    schedule = slow_then_quick()
    test = LoadTest(schedule, Target(url, protocol, TIMEOUT_S), Workers(workers))
    results = Playback(RunFolder.create(folder), test, watcher).play()
    assert seen[-1].answered == len(schedule)
    return results


@pytest.mark.parametrize(
    ("protocol", "workers"),
    [("grpc", 1), pytest.param("http", 1, marks=pytest.mark.long), pytest.param("grpc", 2, marks=pytest.mark.long)],
)
def test_a_slow_server_delays_answers_and_no_request(
    slow_server: TritonServer, tmp_path: Path, protocol: Protocol, workers: int
) -> None:
    results = played(tmp_path / "run", slow_server, protocol, workers)
    requests = results.requests
    assert sorted(requests.numbers.tolist()) == list(range(SLOW_ROWS + QUICK_ROWS))
    late_s = requests.sent_s - requests.scheduled_s
    assert late_s.min() >= 0
    assert late_s.max() < BOUND_S
    slow = requests.hplms == f"slow/{SLOW_MS}"
    # All of them at once, far beyond a hundred connections or a pool of threads.
    assert results.summary["sending"]["most_in_flight"] >= slow.sum()
    assert (requests.latency_s[slow] >= SLOW_MS / 1000).all()
    # Answers of others are read when they come, whatever waits.
    assert requests.latency_s[~slow].max() < BOUND_S


def test_latency_counts_from_the_scheduled_time(slow_server: TritonServer, tmp_path: Path) -> None:
    """What a sender that fell behind adds is in the latency, and the run is told to be invalid."""
    schedule = slow_then_quick()
    overdue_s = BOUND_S + 1
    due_before = dataclasses.replace(schedule, times_s=schedule.times_s - overdue_s, hplm_of=schedule.hplm_of * 0 + 1)
    watcher = Watcher(lambda here, needed: None, lambda now: None)
    folder = RunFolder.create(tmp_path / "run")
    test = LoadTest(due_before, Target(slow_server.grpc_url, timeout_s=TIMEOUT_S))
    results = Playback(folder, test, watcher).play()
    first = results.requests.numbers == 0
    assert results.requests.scheduled_s[first] == -overdue_s
    # Second 0 is a moment ahead when the workers hear of it, so what was due before it can leave a little earlier.
    assert results.requests.latency_s[first] > overdue_s - 2
    assert not results.summary["sending"]["valid"]
    assert "the load generator fell behind" in folder.report.read_text()


@pytest.mark.long
def test_a_lost_worker_is_told(slow_server: TritonServer, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(now: Progress) -> None:
        if now.elapsed_s > 1 and not killed:
            worker = children_with("loadtest.generator.worker")[0]
            worker.kill()
            killed.append(worker.pid)

    folder = RunFolder.create(tmp_path / "run")
    watcher = Watcher(lambda here, needed: None, kill_one)
    test = LoadTest(slow_then_quick(), Target(slow_server.grpc_url, timeout_s=TIMEOUT_S), Workers(2))
    results = Playback(folder, test, watcher).play()
    assert results.run["state"] == "failed"
    assert results.run["trouble"] == ["1 of 2 load workers were lost"]
    assert results.summary["unfinished"] > 0
    assert "1 of 2 load workers were lost" in folder.report.read_text()
