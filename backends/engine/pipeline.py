"""The stages of an engine: each computes its part of the layers of all roots, on threads and cores of its own.

A batch takes a stage before it leaves the one before. So batches keep their order, the rows of a batch stay together,
and a stage that is done waits until the next one has taken its batch. Between the layers a batch is its run thread's,
which judges exits and computes heads; the stages' threads compute layers only.

Usage (by a run thread of the serve loop; there is one for each stage):
    with pipeline.passing(on_left_first):
        stack.run(batch, emit)  # whose layers call `pipeline.compute(stage, work)`
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from backends.engine.compute_pool import ComputePool, Result, Share, take_threads
from backends.errors import HplmError, InvalidArgumentError
from backends.heartbeat import Beat, no_beat

_MOST_SHARES = 1024
"""Shares of all batches at once; each has a thread as long as it is computed."""
OnLeft = Callable[[], None]


@dataclass(frozen=True)
class StagePlace:
    """Where a stage computes.

    Attributes:
        threads: Number of its threads.
        cores: The only ones that its threads run on; none on a GPU, and where there are fewer cores than stages.
    """

    device: torch.device
    threads: int
    cores: tuple[int, ...] = ()


def stage_places(device: torch.device, stages: int, threads: int) -> list[StagePlace]:
    """Give each stage its share of the threads and cores, or a GPU of its own.

    Args:
        device: A CPU, or the GPU of the first stage; the others have the GPUs with the next numbers.
        stages: Number of stages.
        threads: Number of all compute threads.

    Raises:
        InvalidArgumentError: There are fewer threads, or GPUs, than stages.
    """
    if device.type != "cpu":
        return [StagePlace(gpu, 1) for gpu in _gpus(device, stages)]
    if threads < stages:
        raise InvalidArgumentError(f"{stages} stages compute on at least {stages} threads, and there are {threads}")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < stages:
        return [StagePlace(device, threads // stages)] * stages
    shares = [cores[len(cores) * number // stages : len(cores) * (number + 1) // stages] for number in range(stages)]
    return [StagePlace(device, threads // stages, tuple(share)) for share in shares]


def own_place(device: torch.device, stage: int, stages: int, threads: int) -> StagePlace:
    """Return the place of one stage, where each is a process: the GPU is its own, cores and threads are for all."""
    if device.type != "cpu":
        return StagePlace(device, 1)
    return stage_places(device, stages, threads)[stage]


def _gpus(first: torch.device, count: int) -> list[torch.device]:
    index, there_are = first.index or 0, torch.cuda.device_count()
    if index + count > there_are:
        raise InvalidArgumentError(
            f"{count} stages from {first} on take {index + count} GPUs, and there are {there_are}"
        )
    return [torch.device(first.type, number) for number in range(index, index + count)]


class Pipeline(ComputePool):
    """The stages, one behind the other, as the compute pool of stacks that are cut into as many."""

    def __init__(self, places: Sequence[StagePlace], beat: Beat = no_beat) -> None:
        super().__init__(places[0].threads, places[0].device, beat, most_at_once=_MOST_SHARES)
        self.places = places
        self._stages = [_Stage(place, number) for number, place in enumerate(places)]
        self._of_thread = _OfThread()

    @property
    def num_stages(self) -> int:
        return len(self._stages)

    @contextmanager
    def passing(self, on_left_first: OnLeft) -> Iterator[None]:
        """Tell when the batches that the calling thread runs leave the first stage, and another one may begin."""
        self._of_thread.on_left_first = on_left_first
        try:
            yield
        finally:
            self._of_thread.on_left_first = _nobody

    def run(self, compute: Callable[[Share], Result], shares: Sequence[Share]) -> list[Result]:
        """Compute the shares of one batch, which pass the stages together; otherwise as `ComputePool`."""
        threads = max(1, self.places[0].threads // len(shares))
        passage = _Passage(self._stages, len(shares), threads, self._of_thread.on_left_first)
        if len(shares) == 1:
            return [self._along(passage, compute, shares[0])]
        futures = [self._executor.submit(partial(self._along, passage, compute, share)) for share in shares]
        wait(futures)
        return [future.result() for future in futures]

    def compute(self, number: int, work: Callable[[], Tensor]) -> Tensor:
        """Compute in a stage, once the batch of the calling thread has it."""
        way = self._of_thread.way
        if way is None:
            raise HplmError("a stage was asked to compute for no batch")
        way.enter(number)
        return self._stages[number].compute(work, way.threads)

    def close(self) -> None:
        super().close()
        for stage in self._stages:
            stage.close()

    def _along(self, passage: _Passage, compute: Callable[[Share], Result], share: Share) -> Result:
        take_threads(1)  # heads are small; the cores belong to the stages
        self._of_thread.way = way = _Way(passage)
        try:
            return compute(share)
        finally:
            self._of_thread.way = None
            way.end()


def _nobody() -> None:
    """Tell nobody, as no batch waits for a stage."""


class _OfThread(threading.local):
    """What the calling thread runs: a batch, whose leaving the first stage is told, and a share of it."""

    def __init__(self) -> None:
        self.on_left_first: OnLeft = _nobody
        self.way: _Way | None = None


class _Stage:
    """Threads on their own cores, and the passage that they compute for."""

    def __init__(self, place: StagePlace, number: int) -> None:
        self._device = place.device
        pin = partial(os.sched_setaffinity, 0, place.cores) if place.cores else _nobody
        self._executor = ThreadPoolExecutor(place.threads, thread_name_prefix=f"stage-{number}", initializer=pin)
        self._taken_by: _Passage | None = None
        self._changed = threading.Condition()

    def take(self, passage: _Passage) -> None:
        """Wait until no other passage has the stage."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken_by in (None, passage))
            self._taken_by = passage

    def give_back(self, passage: _Passage) -> None:
        with self._changed:
            if self._taken_by is passage:
                self._taken_by = None
                self._changed.notify_all()

    def compute(self, work: Callable[[], Tensor], threads: int) -> Tensor:
        return self._executor.submit(self._computed, work, threads).result()

    def _computed(self, work: Callable[[], Tensor], threads: int) -> Tensor:
        take_threads(threads)
        with torch.inference_mode():  # which is each thread's own
            result = work()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # the stage is in use until its kernels have run
        return result

    def close(self) -> None:
        self._executor.shutdown()


class _Passage:
    """A batch on its way: it has a stage from its first share's coming to its last share's leaving."""

    def __init__(self, stages: Sequence[_Stage], num_shares: int, threads: int, on_left_first: OnLeft) -> None:
        self.threads = threads
        self._stages = stages
        self._to_leave = [num_shares] * len(stages)
        self._on_left_first = on_left_first
        self._lock = threading.Lock()

    @property
    def num_stages(self) -> int:
        return len(self._stages)

    def take(self, number: int) -> None:
        self._stages[number].take(self)

    def leave(self, number: int) -> None:
        """A share needs a stage no more."""
        with self._lock:
            self._to_leave[number] -= 1
            is_last = not self._to_leave[number]
        if is_last:
            self._stages[number].give_back(self)
            if not number and self.num_stages > 1:  # of the only one, the run thread tells once nothing holds it up
                self._on_left_first()


class _Way:
    """A share of a batch on its way through the stages, on one thread."""

    def __init__(self, passage: _Passage) -> None:
        self.threads = passage.threads
        self._passage = passage
        self._at = 0

    def enter(self, number: int) -> None:
        """Take a stage, then leave those before it."""
        self._passage.take(number)
        self._leave_until(number)

    def end(self) -> None:
        self._leave_until(self._passage.num_stages)

    def _leave_until(self, number: int) -> None:
        for left in range(self._at, number):
            self._passage.leave(left)
        self._at = number
