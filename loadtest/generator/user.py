"""The Locust user: plays its worker's share and reports each outcome to Locust and to the master."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gevent
from gevent.event import AsyncResult
from locust import User
from locust.env import Environment
from locust.exception import StopUser

from loadtest.generator.messages import Finished, Share
from loadtest.outcome import Kind, Outcome
from loadtest.sender import Sender, open_sdk

_DRAIN_S = 0.1


class LoadEnvironment(Environment):
    """Locust's environment with this worker's share; `go` is set to second 0 on the monotonic clock."""

    def __init__(
        self, on_outcomes: Callable[[Sequence[Outcome]], None], on_finished: Callable[[Finished], None]
    ) -> None:
        super().__init__(user_classes=[OpenLoopUser])
        self.share: AsyncResult[Share] = AsyncResult()
        self.go: AsyncResult[float] = AsyncResult()
        self.on_outcomes = on_outcomes
        self.on_finished = on_finished


class Playing(threading.Thread):
    """Runs the sender in an event loop of its own; `take` returns the outcomes since the last call."""

    def __init__(self, share: Share, starts_at: float) -> None:
        super().__init__(name="sender", daemon=True)
        self.failure: str | None = None
        self._outcomes: deque[Outcome] = deque()
        self._target = share.target
        self._sender = Sender(share.schedule, self._outcomes.append)
        self._starts_at = starts_at
        self._began_cpu_s = time.process_time()

    def run(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise

    async def _play(self) -> None:
        async with open_sdk(self._target) as ask:
            await self._sender.play(ask, self._starts_at)

    @property
    def finished(self) -> Finished:
        return Finished(self.failure, time.process_time() - self._began_cpu_s)

    def take(self) -> list[Outcome]:
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]


class OpenLoopUser(User):
    """One per worker: it sends all requests of the worker's share, each at its own time."""

    environment: LoadEnvironment

    def play(self) -> None:
        share = self.environment.share.get()
        playing = Playing(share, self.environment.go.get())
        playing.start()
        alive = True
        while alive:
            gevent.sleep(_DRAIN_S)
            alive = playing.is_alive()
            self._report(share, playing.take())
        self.environment.on_finished(playing.finished)
        raise StopUser

    def _report(self, share: Share, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            self.environment.events.request.fire(**_locust_request(share, outcome))
        if outcomes:
            self.environment.on_outcomes(outcomes)

    tasks = [play]  # noqa: RUF012 - as Locust declares it


def _locust_request(share: Share, outcome: Outcome) -> dict[str, Any]:
    """Describe an outcome as Locust counts requests: latency from the moment of sending."""
    return {
        "request_type": share.target.protocol or "grpc",
        "name": "infer",
        "response_time": 1000 * (outcome.done_s - outcome.sent_s),
        "response_length": 0,
        "start_time": time.time() - (outcome.done_s - outcome.sent_s),
        "context": {},
        "exception": None if outcome.kind == Kind.ANSWERED else RuntimeError(outcome.reason),
    }
