"""A mixed load in a process of its own, which tells each second what became of its requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Self

from backends.errors import UnavailableError
from bench.kit.mixed_load import MixedLoad

_TOLD_EVERY_S = 1.0
_LAST_REQUEST_S = 60.0
CAPACITY_KINDS: Mapping[str, float] = {"grpc": 2 / 3, "http": 1 / 3}
"""What the server is full of while its capacity is measured: every request is answered, and computed."""
KINDS: Mapping[str, float] = {
    "grpc": 0.35,
    "http": 0.2,
    "deadline": 0.15,
    "cancelled": 0.15,
    "unknown": 0.05,
    "passing": 0.1,
}
_EXPECTED: Mapping[str, frozenset[str]] = {
    "grpc": frozenset(("answered",)),
    "http": frozenset(("answered",)),
    "deadline": frozenset(("answered", "unavailable")),
    "cancelled": frozenset(("answered", "given_up")),
    "unknown": frozenset(("not_found",)),
    "passing": frozenset(("answered", "not_found")),
}
_WRONG = "wrong"


class LoadProcess:
    """Plays from `__enter__` to `__exit__`; ends also with the process that started it."""

    def __init__(self, load: MixedLoad, seed: int) -> None:
        context = get_context("spawn")
        self._told, sender = context.Pipe(duplex=False)
        self._stopping = context.Event()
        self._process = context.Process(target=_play, args=(load, sender, self._stopping, seed), daemon=True)
        self._outcomes = Counter[str]()

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._process.join(_LAST_REQUEST_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def outcomes(self) -> Counter[str]:
        """All since the beginning, a second old at most; to be called often, lest the process waits for a reader.

        Raises:
            UnavailableError: The process has ended by itself.
        """
        while self._told.poll():
            try:
                self._outcomes = self._told.recv()
            except EOFError:
                break
        if not self._process.is_alive():
            raise UnavailableError(f"the load has ended by itself, with code {self._process.exitcode}")
        return self._outcomes.copy()


def capacity_per_s(load: MixedLoad, duration_s: float, seed: int) -> float:
    """Answers a second while all callers ask without pauses."""
    full = replace(load, kinds=CAPACITY_KINDS, rate_per_s=None)
    outcomes = asyncio.run(full.play(duration_s, seed))
    return (outcomes["grpc_answered"] + outcomes["http_answered"]) / duration_s


def num_failed(outcomes: Mapping[str, int]) -> int:
    """Count the outcomes that a server which is well does not give."""
    return sum(count for (_, outcome, is_expected), count in _judged(outcomes) if not is_expected and outcome != _WRONG)


def num_wrong(outcomes: Mapping[str, int]) -> int:
    """Count the answers of others than the version that they carry."""
    return sum(count for (_, outcome, _), count in _judged(outcomes) if outcome == _WRONG)


def _judged(outcomes: Mapping[str, int]) -> list[tuple[tuple[str, str, bool], int]]:
    parts = [(name.partition("_"), count) for name, count in outcomes.items()]
    return [((kind, outcome, outcome in _EXPECTED[kind]), count) for (kind, _, outcome), count in parts]


def _play(load: MixedLoad, sender: Connection, stopping: Event, seed: int) -> None:
    asyncio.run(_play_and_tell(load, sender, stopping.is_set, seed))


async def _play_and_tell(load: MixedLoad, sender: Connection, is_stopping: Callable[[], bool], seed: int) -> None:
    outcomes = Counter[str]()
    parent = parent_process()

    def goes_on() -> bool:
        return not is_stopping()

    playing = asyncio.create_task(load.play_while(goes_on, outcomes, seed))
    while not playing.done() and parent is not None and parent.is_alive():
        await asyncio.sleep(_TOLD_EVERY_S)
        sender.send(outcomes)
    if playing.done():
        playing.result()
    playing.cancel()
