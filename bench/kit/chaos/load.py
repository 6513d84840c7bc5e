"""Callers in a process of their own: over gRPC and HTTP, with deadlines and without, until they are told to stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from bench.kit.marks import Mark
from hplm_client import (
    Answer,
    AsyncHplmClient,
    Classification,
    ClientError,
    NotReadyError,
    RequestTimeoutError,
    UnavailableError,
)
from loadtest.errors import RunError
from loadtest.outcome import general

LIMIT_S = 60.0
"""A request without an outcome by then is lost. The SDK waits as long, whatever deadline the request carries."""
_GRACE_S = 5.0
_BEGIN_S = 60.0
_AFTER_FAILURE_S = 0.1


class Ended(StrEnum):
    """How a request ended. A rejection comes from a model and gives its reason; any other error is a failure."""

    ANSWERED = "answered"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"


class Requested(NamedTuple):
    """One request, with times of the machine's monotonic clock; `fits` says that its scores bear its version's mark."""

    protocol: str
    hplm: str
    deadline_ms: int | None
    sent_s: float
    done_s: float
    ended: Ended
    reason: str = ""
    version: int | None = None
    fits: bool = True


@dataclass(frozen=True)
class Callers:
    """Each pauses for a random time after an answer, `pause_s` on average; half of them call over either protocol."""

    grpc_url: str
    http_url: str
    hplms: Sequence[str]
    texts: Sequence[str]
    count: int
    pause_s: float
    deadlines_ms: tuple[int, int]
    seed: int


class LoadProcess:
    """Plays callers from the block's begin to its end; then all that they asked is known.

    Usage:
        with LoadProcess(callers) as load:
            ...
        load.asked, load.requests
    """

    def __init__(self, callers: Callers) -> None:
        context = get_context("spawn")
        self._stopping = context.Event()
        self._results, results = context.Pipe(duplex=False)
        self._process = context.Process(target=_play, args=(callers, self._stopping, results), daemon=True)
        self.asked = 0
        self.requests: list[Requested] = []

    def __enter__(self) -> Self:
        """Return once the first callers have been answered."""
        self._process.start()
        self._receive(_BEGIN_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        try:
            self.asked, self.requests = self._receive(LIMIT_S + 2 * _GRACE_S)
        finally:
            self._process.join(_GRACE_S)
            self._process.kill()

    def _receive(self, timeout_s: float) -> Any:
        try:
            if self._results.poll(timeout_s):
                return self._results.recv()
        except EOFError:
            raise RunError("the callers' process has ended") from None
        raise RunError(f"the callers' process has told nothing for {timeout_s:g} s")


def _play(callers: Callers, stopping: Event, results: Connection) -> None:
    results.send(asyncio.run(_ask_all(callers, stopping, lambda: results.send(None))))


async def _ask_all(callers: Callers, stopping: Event, on_begun: Callable[[], None]) -> tuple[int, list[Requested]]:
    asked: list[None] = []
    requests: list[Requested] = []
    async with (
        AsyncHplmClient(callers.grpc_url, "grpc", retries=0) as grpc,
        AsyncHplmClient(callers.http_url, "http", retries=0) as http,
        asyncio.TaskGroup() as group,
    ):
        await asyncio.gather(*(client.infer(callers.hplms[0], callers.texts[0]) for client in (grpc, http)))
        on_begun()
        for number in range(callers.count):
            protocol, client = ("grpc", grpc) if number % 2 else ("http", http)
            rng = np.random.default_rng((callers.seed, number))
            group.create_task(_ask_until(stopping, callers, protocol, client, rng, asked, requests))
    return len(asked), requests


async def _ask_until(
    stopping: Event,
    callers: Callers,
    protocol: str,
    client: AsyncHplmClient,
    rng: np.random.Generator,
    asked: list[None],
    requests: list[Requested],
) -> None:
    while not stopping.is_set():
        hplm = callers.hplms[int(rng.integers(len(callers.hplms)))]
        text = callers.texts[int(rng.integers(len(callers.texts)))]
        deadline_ms = int(rng.integers(*callers.deadlines_ms)) if rng.random() < 0.5 else None
        asked.append(None)
        request = await _ask(client, protocol, hplm, text, deadline_ms)
        requests.append(request)
        await asyncio.sleep(_AFTER_FAILURE_S if request.ended is Ended.FAILED else rng.exponential(callers.pause_s))


async def _ask(client: AsyncHplmClient, protocol: str, hplm: str, text: str, deadline_ms: int | None) -> Requested:
    sent_s = time.monotonic()

    def told(ended: Ended, reason: str = "") -> Requested:
        return Requested(protocol, hplm, deadline_ms, sent_s, time.monotonic(), ended, reason)

    try:
        asking = client.infer(hplm, text, deadline_ms=deadline_ms, timeout_s=LIMIT_S)
        answer = await asyncio.wait_for(asking, LIMIT_S + _GRACE_S)
    except (TimeoutError, RequestTimeoutError) as error:
        return told(Ended.LOST, type(error).__name__)
    except ClientError as error:
        return told(ended_by(error), f"{error.code}: {general(error.message)}")
    return told(Ended.ANSWERED)._replace(version=answer.version, fits=fits(hplm, answer))


def ended_by(error: ClientError) -> Ended:
    """Judge an error of the SDK's."""
    if isinstance(error, RequestTimeoutError):
        return Ended.LOST
    is_rejection = isinstance(error, UnavailableError) and not isinstance(error, NotReadyError)
    return Ended.REJECTED if is_rejection and getattr(error, "reason", None) is not None else Ended.FAILED


def fits(hplm: str, answer: Answer) -> bool:
    """Whether an answer's scores bear the mark of the version that it names."""
    return isinstance(answer, Classification) and Mark.of(hplm, answer.version).fits(answer.scores)
