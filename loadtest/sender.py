"""The one load generator: asyncio tasks over the SDK; a request is sent once and never repeated.

Two ways to play a schedule:

- Open loop (`in_flight=None`): each request leaves at its planned time, however many wait for their answers. A slow
  server delays answers and never requests. Latency counts from the planned time and so includes the sender's own lag.
- Closed loop (`in_flight=n`): n requests are under way at any time; the next row is sent when an answer comes. Planned
  times are ignored. After a request without an answer its caller pauses 20 ms, so that a full queue is not asked in a
  busy loop.

Deadlines are those of the plan. A request carries the rest of its deadline at the moment of sending, in whole
milliseconds rounded down; if nothing is left, it is not sent and its outcome is `Kind.UNSENT`: missed, never admitted.

Usage (`loadtest.in_process.play` does this, and makes columns of the outcomes):
    async with open_sdk(Target("localhost:8001")) as ask:
        effort = await Sender(schedule, outcomes.append).play(ask)
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from hplm_client import Answer, AsyncHplmClient, ClientError, Request
from hplm_client.address import Protocol
from loadtest.outcome import Kind, Outcome
from loadtest.schedule import Schedule

_ROWS_WITHOUT_PAUSE = 16
_PAUSE_S = 0.02


@dataclass(frozen=True)
class Target:
    """The server. `timeout_s` limits each request; None: its deadline and a second, or 30 s without a deadline."""

    url: str
    protocol: Protocol | None = None
    timeout_s: float | None = None


Ask = Callable[[Request], Awaitable[Answer | None]]
"""Sends a request and waits for its answer, None from a model without versions; raises ClientError if there is none."""
OpenAsk = Callable[[Target], AbstractAsyncContextManager[Ask]]


@asynccontextmanager
async def open_sdk(target: Target) -> AsyncIterator[Ask]:
    """Ask through the SDK, without repetition."""
    # The schedule says which deadlines there are, whatever the environment says of those of other programs.
    sdk = AsyncHplmClient(target.url, target.protocol, retries=0)
    async with sdk.with_options(deadline_ms=None, timeout_s=None) as client:

        async def ask(request: Request) -> Answer:
            return await client.infer(
                request.hplm,
                request.text,
                request.text_pair,
                deadline_ms=request.deadline_ms,
                level=request.level,
                timeout_s=target.timeout_s,
            )

        yield ask


@dataclass(frozen=True)
class Effort:
    """The cost of playing a load to the whole process."""

    wall_s: float
    cpu_s: float


class Sender:
    """Plays one schedule.

    Args:
        schedule: The rows.
        report: Called in the event loop's thread with every outcome.
        in_flight: None for open loop, or the number of requests under way in a closed loop.
        duration_s: Closed loop only: repeat the rows until this time is over, instead of sending each once.
    """

    def __init__(
        self,
        schedule: Schedule,
        report: Callable[[Outcome], None],
        in_flight: int | None = None,
        duration_s: float | None = None,
    ) -> None:
        if in_flight is not None and in_flight < 1:
            raise ValueError(f"in_flight must be 1 or more, not {in_flight}")
        if in_flight is None and duration_s is not None:
            raise ValueError("an open loop lasts as long as its schedule; duration_s goes with in_flight")
        self._schedule = schedule
        self._report = report
        self._in_flight = in_flight
        self._duration_s = math.inf if duration_s is None else duration_s

    async def play(self, ask: Ask, starts_at: float | None = None) -> Effort:
        """Send the rows from a moment of the monotonic clock on (None: now); returns when the last one has ended."""
        # A garbage collection of everything that is loaded would delay requests.
        gc.collect()
        gc.freeze()
        cpu_s, began_s = time.process_time(), time.monotonic()
        starts_at = began_s if starts_at is None else starts_at
        try:
            if self._in_flight is None:
                await self._play_open_loop(ask, starts_at)
            else:
                await self._play_closed_loop(ask, starts_at, self._in_flight)
        finally:
            gc.unfreeze()
        return Effort(time.monotonic() - began_s, time.process_time() - cpu_s)

    async def _play_open_loop(self, ask: Ask, starts_at: float) -> None:
        async with asyncio.TaskGroup() as group:
            for row, at_s in enumerate(self._schedule.times_s.tolist()):
                ahead_s = starts_at + at_s - time.monotonic()
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
                elif row % _ROWS_WITHOUT_PAUSE == 0:
                    await asyncio.sleep(0)
                group.create_task(self._send(ask, row, starts_at, at_s))

    async def _play_closed_loop(self, ask: Ask, starts_at: float, in_flight: int) -> None:
        rows = self._rows(starts_at + self._duration_s)
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(self._send_in_turn(ask, rows, starts_at))

    def _rows(self, ends_at: float) -> Iterator[int]:
        rows: Iterator[int] = iter(range(len(self._schedule)))
        if math.isfinite(ends_at):
            rows = itertools.cycle(rows)
        return itertools.takewhile(lambda _: time.monotonic() < ends_at, rows)

    async def _send_in_turn(self, ask: Ask, rows: Iterator[int], starts_at: float) -> None:
        for row in rows:
            outcome = await self._send(ask, row, starts_at, None)
            if outcome.kind != Kind.ANSWERED:
                await asyncio.sleep(_PAUSE_S)

    async def _send(self, ask: Ask, row: int, starts_at: float, planned_s: float | None) -> Outcome:
        """Send one row; without a planned time its deadline counts from now."""
        number = int(self._schedule.numbers[row])
        sent_s = time.monotonic() - starts_at
        left_ms = self._schedule.deadline_ms(row)
        if left_ms is not None and planned_s is not None:
            left_ms = math.floor(left_ms - 1000 * (sent_s - planned_s))
        if left_ms is not None and left_ms < 1:
            outcome = Outcome.unsent(number, sent_s)
        else:
            result = await _result_of(ask, self._schedule, row, left_ms)
            done_s = time.monotonic() - starts_at
            outcome = Outcome.of(number, sent_s, done_s, result, self._schedule.label(row))
        self._report(outcome)
        return outcome


async def _result_of(ask: Ask, schedule: Schedule, row: int, left_ms: int | None) -> Answer | ClientError | None:
    try:
        return await ask(schedule.request(row, left_ms))
    except ClientError as error:
        return error
