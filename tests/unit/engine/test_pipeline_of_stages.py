"""The stages' threads: batches pass them in order, one at a time, on their own cores."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import dataclass, field

import pytest
import torch

from backends.engine.pipeline import Pipeline, StagePlace, stage_places
from backends.errors import HplmError, InvalidArgumentError

CPU = torch.device("cpu")
NOTHING = torch.zeros(1)


@dataclass
class Times:
    """When each batch began and ended in each stage."""

    began: dict[tuple[int, int], float] = field(default_factory=dict)
    ended: dict[tuple[int, int], float] = field(default_factory=dict)

    def work(self, pipeline: Pipeline, stage: int, batch: int, seconds: float) -> None:
        def work() -> torch.Tensor:
            self.began.setdefault((stage, batch), time.monotonic())
            time.sleep(seconds)
            self.ended[stage, batch] = time.monotonic()
            return NOTHING

        pipeline.compute(stage, work)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("shares", [1, 3])
def test_batches_pass_as_a_chain_does(stages: int, shares: int, seed: int) -> None:
    """start(s, b) >= end(s - 1, b), end(s, b - 1), and end(s + 1, b - 2): a stage is left for the next one only."""
    chance, batches, times = random.Random(seed + stages), 8, Times()
    seconds = [[chance.choice([0.0, 0.01, 0.03]) for _ in range(stages)] for _ in range(batches)]
    pipeline = Pipeline([StagePlace(CPU, shares)] * stages)
    may_begin = threading.Semaphore(1)
    order: list[int] = []
    lock = threading.Lock()

    def run(number: int) -> None:
        def compute(_: int) -> None:
            for stage in range(stages):
                times.work(pipeline, stage, number, seconds[number][stage])

        with pipeline.passing(may_begin.release):
            pipeline.run(compute, range(shares))

    def lane() -> None:
        while True:
            may_begin.acquire()
            with lock:
                number = len(order)
                order.append(number)
            if number >= batches:
                may_begin.release()
                return
            run(number)

    lanes = [threading.Thread(target=lane) for _ in range(stages)]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join(60)
    for batch in range(batches):
        for stage in range(stages):
            case = f"stage {stage}, batch {batch} of seed {seed}"
            began = times.began[stage, batch]
            if shares == 1 and stage:
                assert began >= times.ended[stage - 1, batch], case
            if batch:
                assert began >= times.ended[stage, batch - 1], case
            if batch > 1 and stage < stages - 1:
                assert began >= times.ended[stage + 1, batch - 2], f"{case}: it had not been left"
    overlaps = [times.began[0, batch + 1] < times.ended[1, batch] for batch in range(batches - 1)]
    assert any(overlaps), "nothing ran side by side"
    pipeline.close()


def test_a_batch_that_ends_early_leaves_all_stages() -> None:
    pipeline, left = Pipeline([StagePlace(CPU, 1)] * 3), list[int]()
    with pipeline.passing(lambda: left.append(1)):
        assert pipeline.run(lambda _: pipeline.compute(0, lambda: NOTHING), [0]) == [NOTHING]
        assert left == [1]
        pipeline.run(lambda _: [pipeline.compute(stage, lambda: NOTHING) for stage in (0, 0, 1, 2)], [0])
    assert left == [1, 1]
    pipeline.close()


def test_an_error_leaves_the_stages_to_the_others() -> None:
    pipeline = Pipeline([StagePlace(CPU, 1)] * 2)

    def fail() -> torch.Tensor:
        raise MemoryError("no room")

    for stage in (0, 1):
        with pytest.raises(MemoryError, match="no room"):
            pipeline.run(lambda _, stage=stage: pipeline.compute(stage, fail), [0])  # type: ignore[misc]
        assert pipeline.run(lambda _: pipeline.compute(1, lambda: NOTHING), [0]) == [NOTHING]
    with pytest.raises(HplmError, match="for no batch"):
        pipeline.compute(0, lambda: NOTHING)
    pipeline.close()


def test_each_stage_has_its_share_of_threads_and_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))
    places = stage_places(CPU, 2, 4)
    assert [place.threads for place in places] == [2, 2]
    if len(cores) >= 2:
        assert sorted(core for place in places for core in place.cores) == cores
        assert not set(places[0].cores) & set(places[1].cores)
    assert [place.cores for place in stage_places(CPU, len(cores) + 1, len(cores) + 1)] == [()] * (len(cores) + 1)
    with pytest.raises(InvalidArgumentError, match="3 stages compute on at least 3 threads, and there are 2"):
        stage_places(CPU, 3, 2)


def test_stages_compute_on_their_cores_only() -> None:
    cores = sorted(os.sched_getaffinity(0))
    pipeline = Pipeline([StagePlace(CPU, 1, (cores[0],)), StagePlace(CPU, 2, (cores[-1],))])
    found: list[tuple[set[int], int]] = []

    def note() -> torch.Tensor:
        found.append((os.sched_getaffinity(0), torch.get_num_threads()))
        return NOTHING

    pipeline.run(lambda _: [pipeline.compute(stage, note) for stage in (0, 1)], [0])
    assert [allowed for allowed, _ in found] == [{cores[0]}, {cores[-1]}]
    assert os.sched_getaffinity(0) == set(cores)
    pipeline.close()
