"""An engine in a process of its own, on its own cores; the process asks it, too.

So the ways that are compared bear the same: each core bears its part of the asking, and two engines share no
interpreter.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from backends.compiled import limit_compiled_products
from backends.engine.open_request import Answered
from backends.engine.service import HiddenRows, UpperService
from backends.engine.stack import StackSettings
from backends.engine.ticket_gate import TicketGate
from backends.errors import HplmError
from backends.home import Home
from backends.openmp import limit_spinning
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.seal import Seal
from backends.wire import Ticket, encode_tickets, fold_rows
from bench.kit.bare import timed
from bench.kit.stages.chained import FirstStage, SecondStage
from loadtest.errors import RunError

Seconds = NDArray[np.float64]
Numbers = NDArray[np.int64]
Found = TypeVar("Found")
_WAITING = 100_000
_PATIENCE_S = 120.0
_WARM_UP = 20


@dataclass(frozen=True)
class EngineShape:
    """What an engine is.

    Attributes:
        cores: The only ones of its process; each has a thread that computes, of this stage or of another one.
        stages: Parts that the layers are cut into.
        max_rows: Rows in a batch, at most.
        stage: The only one of them in this process; None for all.
    """

    cores: tuple[int, ...]
    stages: int
    max_rows: int
    stage: int | None = None


@dataclass(frozen=True)
class Asking:
    """Requests of one row each, for hPLMs of roots in turn.

    Attributes:
        home: Where these are.
        hplms: Their names, of each root.
        tokens: Of each row.
        dtype: What the layers compute in.
    """

    home: Path
    hplms: tuple[tuple[str, ...], ...]
    tokens: int
    dtype: str


class EngineProcess:
    """Starts an engine, and asks it.

    Args:
        shape: Its cores, its stages and its batches.
        asking: Where its hPLMs are, and which rows they are asked for.
        link: This engine's end of the link to the other stage, where each is a process.
    """

    def __init__(self, shape: EngineShape, asking: Asking, link: Connection | None = None) -> None:
        limit_spinning()  # by variables, which the process inherits
        limit_compiled_products()
        self._executor = ProcessPoolExecutor(1, get_context("spawn"), _start, (shape, asking, link))
        self._warm = self._executor.submit(_call, _Engine.warm_up)  # which starts the process

    def wait_until_warm(self) -> None:
        self._warm.result()

    def play(self, times_s: Seconds, roots: Numbers, starts_at: float) -> Future[Seconds]:
        """Ask at given times; returns how long each answer took from then."""
        return self._executor.submit(_call, _Engine.play, times_s, roots, starts_at)

    def alone_s(self, rows: int) -> Future[float]:
        """Time rows that are alone in the engine; returns the median."""
        return self._executor.submit(_call, _Engine.alone_s, rows)

    def busy_s(self, rows: int, in_flight: int) -> float:
        """Return the time that a row takes where so many are waiting all the time."""
        return self._executor.submit(_call, _Engine.busy_s, rows, in_flight).result()

    def close(self) -> None:
        try:
            self._executor.submit(_call, _Engine.close).result()
        finally:
            self._executor.shutdown()


class _Engine:
    def __init__(self, shape: EngineShape, asking: Asking, link: Connection | None = None) -> None:
        os.sched_setaffinity(0, shape.cores)  # which threads inherit
        torch.set_num_threads(1)
        home = Home(asking.home)
        self._snapshot = RegistrySnapshot(registry := Registry.open(home))
        settings = StackSettings(dtype=asking.dtype, stages=shape.stages, stage=shape.stage)
        capacity = Capacity(max_rows=shape.max_rows)
        admission = AdmissionSettings(_WAITING, tenant_quota=_WAITING, predicts=False)
        self._seal = Seal.of_server()  # of all engines of this bench
        self._service = UpperService(
            home, self._snapshot, settings, capacity, admission, threads=len(shape.cores), gate=TicketGate(self._seal)
        )
        self._first_stage: FirstStage | None = None
        self._is_asked = not settings.is_later_stage
        if link is not None and self._is_asked:
            self._first_stage = FirstStage(link, self._seal)
        elif link is not None:
            SecondStage(link, self._service.submit_all)
        rng = np.random.default_rng(0)
        keys = {entry.id: entry.key for entry in registry.hplms()}
        hidden_size = RootFolder(home.root(registry.roots()[0].name)).geometry.hidden_size
        self._row = fold_rows([rng.standard_normal((asking.tokens, hidden_size)).astype(np.float16)])
        self._tickets = [
            cycle([Ticket(keys[hplm], asking.tokens, False, None) for hplm in of_root]) for of_root in asking.hplms
        ]

    def warm_up(self) -> None:
        """Ask a few times; a later stage is asked by the first one."""
        for _ in range(_WARM_UP if self._is_asked else 0):
            for root in range(len(self._tickets)):
                self._ask_and_wait(root)

    def play(self, times_s: Seconds, roots: Numbers, starts_at: float) -> Seconds:
        took_s = np.zeros(len(times_s))
        left = _CountDown(len(times_s))
        for number, (time_s, root) in enumerate(zip(times_s.tolist(), roots.tolist(), strict=True)):
            at = starts_at + time_s
            while (early_s := at - time.monotonic()) > 0:
                time.sleep(early_s)
            self._ask(root, partial(self._note, took_s, left, number, at))
        left.wait()
        return took_s

    def alone_s(self, rows: int) -> float:
        return median(timed(partial(self._ask_and_wait, number % len(self._tickets))) for number in range(rows))

    def busy_s(self, rows: int, in_flight: int) -> float:
        """Rows of one root come together, as long as its batches take."""
        room, left = threading.Semaphore(in_flight), _CountDown(rows)

        def answered(answer: Answered) -> None:
            room.release()
            left.one(answer)

        started_s = time.perf_counter()
        for number in range(rows):
            if not room.acquire(timeout=_PATIENCE_S):
                raise RunError(f"no answer came for {_PATIENCE_S:.0f} s; {in_flight} rows wait")
            if left.has_failed:
                break
            self._ask(number // in_flight % len(self._tickets), answered)
        left.wait()
        return (time.perf_counter() - started_s) / rows

    def close(self) -> None:
        self._service.close()
        self._snapshot.close()

    def _ask(self, root: int, respond: Callable[[Answered], None]) -> None:
        rows = HiddenRows(self._row, encode_tickets([next(self._tickets[root])], self._seal), [b""])
        if self._first_stage is not None:
            respond = self._first_stage.after(rows, respond)
        self._service.submit_all([(rows, respond)])

    def _ask_and_wait(self, root: int) -> None:
        left = _CountDown(1)
        self._ask(root, left.one)
        left.wait()

    @staticmethod
    def _note(took_s: Seconds, left: _CountDown, number: int, asked_at: float, answered: Answered) -> None:
        took_s[number] = time.monotonic() - asked_at
        left.one(answered)


class _CountDown:
    """Waits for so many answers, none of which may be an error."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._changed = threading.Condition()
        self._error: HplmError | None = None

    def one(self, answered: Answered) -> None:
        with self._changed:
            self._left -= 1
            if isinstance(answered, HplmError):
                self._error = answered
            self._changed.notify_all()

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def wait(self) -> None:
        """Wait for all answers, or for the first error, which is raised."""
        with self._changed:
            while self._left and self._error is None:
                if not self._changed.wait(_PATIENCE_S):
                    raise RunError(f"no answer came for {_PATIENCE_S:.0f} s; {self._left} are missing")
        if self._error is not None:
            raise self._error


_STARTED: list[_Engine] = []
"""The engine of this process."""


def _start(shape: EngineShape, asking: Asking, link: Connection | None) -> None:
    _STARTED.append(_Engine(shape, asking, link))


def _call(method: Callable[..., Found], *arguments: object) -> Found:
    return method(_STARTED[0], *arguments)
