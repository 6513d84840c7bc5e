"""The parallel map: the order of the results, how much is under way at once, and what a death does."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil
import pytest

from backends.errors import InvalidArgumentError, TrainingDataError, UnavailableError
from builder.executors.mapping import in_order, map_here
from builder.executors.processes import ProcessMap, local_map
from living_processes import children_with, living
from ray_tasks import Failing


@dataclass(frozen=True)
class SlowSquare:
    """Squares, slower for some numbers than for others; says who did it and how often it got ready for work."""

    folder: Path

    @cached_property
    def _ready(self) -> int:
        (self.folder / f"ready-{os.getpid()}-{time.monotonic_ns()}").touch()
        return os.getpid()

    def __call__(self, number: int) -> tuple[int, int]:
        time.sleep(0.02 * (number % 3))
        return number * number, self._ready


def test_results_come_in_order_from_processes_that_get_ready_once(tmp_path: Path) -> None:
    numbers = random.sample(range(1000), 30)
    results = list(ProcessMap(2)(SlowSquare(tmp_path), iter(numbers)))
    assert [square for square, _ in results] == [number * number for number in numbers]
    workers = {worker for _, worker in results}
    assert os.getpid() not in workers
    assert len(workers) == len(list(tmp_path.iterdir())) <= 2
    assert not any(psutil.pid_exists(worker) for worker in workers)


def test_an_error_reaches_the_caller_as_it_was() -> None:
    results = ProcessMap(2)(Failing(), range(5))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TrainingDataError, match=r"^chunk 3 is bad$"):
        next(results)


def test_a_killed_process_is_one_clear_error() -> None:
    with pytest.raises(UnavailableError, match="a process of a parallel step was killed"):
        list(ProcessMap(2)(Failing(), [5, 6]))


def test_chunks_are_taken_only_as_results_are() -> None:
    taken: list[int] = []

    def chunks() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    results = in_order(lambda chunk: chunk, lambda pending: pending, chunks(), in_flight=4)
    assert taken == []
    for expected in range(100):
        assert next(results) == expected
        assert len(taken) <= min(100, expected + 4)


def test_one_process_is_this_one() -> None:
    assert local_map(1) is map_here
    with pytest.raises(InvalidArgumentError):
        local_map(0)


@dataclass(frozen=True)
class Endless:
    """The first chunk is done at once, the others never."""

    def __call__(self, number: int) -> int:
        if number:
            time.sleep(3600)
        return os.getpid()


def test_who_stops_taking_results_waits_for_no_chunk() -> None:
    results = ProcessMap(2)(Endless(), range(9))
    next(results)
    workers = children_with("spawn_main")
    assert workers
    results.close()  # type: ignore[attr-defined]
    assert not psutil.wait_procs(workers, timeout=30)[1]


@dataclass(frozen=True)
class Large:
    """Results of so many bytes, each after a moment."""

    size_bytes: int

    def __call__(self, number: int) -> bytes:
        time.sleep(0.02)
        return bytes(self.size_bytes)


@pytest.mark.parametrize("size_bytes", [8 << 20, pytest.param(60 << 20, marks=pytest.mark.long)])
def test_who_stops_in_the_middle_of_a_large_result_does_not_hang(size_bytes: int) -> None:
    for taken in range(1, 4):
        results = ProcessMap(2)(Large(size_bytes), range(50))
        for _ in range(taken):
            assert len(next(results)) == size_bytes
        closing = threading.Thread(target=results.close, daemon=True)  # type: ignore[attr-defined]
        closing.start()
        closing.join(60)
        assert not closing.is_alive()


_CALLER = """
import os, signal, time
from builder.executors.processes import ProcessMap
def pid(number):
    time.sleep(0.05 if number < 4 else 3600)
    return os.getpid()
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    for found in ProcessMap(2)(pid, range(100)):
        print(found, flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_no_process_outlives_its_caller(sent: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "caller.py"
    program.write_text(_CALLER)
    caller = subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert caller.stdout is not None
    workers = {psutil.Process(int(caller.stdout.readline())) for _ in range(4)}
    time.sleep(1.0)  # until it waits: an interrupt that meets CPython in the middle of taking a lock can be lost in it
    caller.send_signal(sent)
    caller.wait(60)
    psutil.wait_procs(workers, timeout=30)
    assert not living(workers)
