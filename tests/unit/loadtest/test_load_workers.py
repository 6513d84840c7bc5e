"""Workers of other machines: more of them than a load needs, and one that is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest

from loadtest.generator.master import Master
from loadtest.outcome import Kind, Outcome
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target
from loadtest.workers import Workers
from small_servers import free_port, small_server
from waiting import LIMIT_S

PROJECT = Path(__file__).parents[3]


@contextmanager
def workers(port: int, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "loadtest.generator.worker", "127.0.0.1", str(port)]
    started = [subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        yield started
    finally:
        for worker in started:
            worker.kill()
            worker.communicate()


def test_more_workers_than_a_load_needs_are_told_so(tmp_path: Path) -> None:
    rows = [Row(number / 50, "acme/x", "text") for number in range(50)]
    outcomes: list[Outcome] = []
    port = free_port()
    with small_server("grpc") as server, workers(port, 2) as started, gevent.Timeout(LIMIT_S):
        master = Master(Workers(1, port), tmp_path / "log")
        ending = master.play(
            Target(server.url), Schedule.of(rows), outcomes.extend, lambda here, needed: None, lambda now: None
        )
        ends = [(worker.communicate(timeout=LIMIT_S)[1], worker.returncode) for worker in started]
    assert ending.trouble == ()
    assert sorted(outcome.number for outcome in outcomes) == list(range(50))
    assert {outcome.kind for outcome in outcomes} == {Kind.ANSWERED}
    rejected = [words for words, code in ends if code == 1]
    assert len(rejected) == 1
    assert all("not needed: the load has all the workers that it needs, 1" in words for words in rejected)
    assert [code for _, code in ends if code != 1] == [0]


def test_a_worker_plays_its_share_once_though_another_one_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master forgets a lost worker after seconds here, and not after a minute."""
    monkeypatch.setattr("locust.runners.HEARTBEAT_INTERVAL", 0.5)
    monkeypatch.setattr("locust.runners.HEARTBEAT_DEAD_INTERNAL", -1)
    rows = [Row(number / 25, "acme/x", "text") for number in range(250)]
    outcomes: list[Outcome] = []
    port = free_port()
    with small_server("grpc") as server, workers(port, 2) as started, gevent.Timeout(LIMIT_S):
        master = Master(Workers(2, port), tmp_path / "log")

        def take(some: Sequence[Outcome]) -> None:
            outcomes.extend(some)
            started[0].kill()

        ending = master.play(Target(server.url), Schedule.of(rows), take, lambda here, needed: None, lambda now: None)
    assert ending.trouble == ("1 of 2 load workers were lost",)
    numbers = [outcome.number for outcome in outcomes]
    assert len(numbers) == len(set(numbers))
    assert 125 <= len(numbers) < 250
