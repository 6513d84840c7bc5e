"""Plays a schedule: each request leaves at its time, whatever became of the others.

A request is a task of its own in one asyncio loop, and nothing limits how many are under way. So a slow server delays
answers, never requests, and latency counts from the scheduled time: what waits because the sender itself fell behind is
in it too. Asked once, never repeated.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from hplm_client import AsyncHplmClient, ClientError, Request
from hplm_client.address import Protocol
from loadtest.outcome import Outcome
from loadtest.schedule import Schedule
from loadtest.texts import halves

_ROWS_WITHOUT_PAUSE = 16


@dataclass(frozen=True)
class Target:
    """The server. `timeout_s` is how long a request may take; None for its deadline and a second, or 30 s without."""

    url: str
    protocol: Protocol | None = None
    timeout_s: float | None = None


class Sender:
    """One share of a load; `report` is called in the loop's thread with every outcome."""

    def __init__(self, target: Target, schedule: Schedule, report: Callable[[Outcome], None]) -> None:
        self._target = target
        self._schedule = schedule
        self._report = report
        self._requests = [request_of(schedule, row) for row in range(len(schedule))]

    async def play(self, starts_at: float) -> None:
        """Send all rows from a moment of the monotonic clock on; ends when the last one has its outcome."""
        client = AsyncHplmClient(self._target.url, self._target.protocol, retries=0)
        # A collection in the middle would stop the clock for everything that is loaded.
        gc.collect()
        gc.freeze()
        async with client, asyncio.TaskGroup() as group:
            for row, at_s in enumerate(self._schedule.times_s):
                ahead_s = starts_at + float(at_s) - time.monotonic()
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)
                elif row % _ROWS_WITHOUT_PAUSE == 0:
                    await asyncio.sleep(0)
                group.create_task(self._ask(client, row, starts_at))

    async def _ask(self, client: AsyncHplmClient, row: int, starts_at: float) -> None:
        request = self._requests[row]
        sent_s = time.monotonic() - starts_at
        try:
            outcome = await client.infer(
                request.hplm,
                request.text,
                request.text_pair,
                deadline_ms=request.deadline_ms,
                timeout_s=self._target.timeout_s,
            )
        except ClientError as error:
            done_s = time.monotonic() - starts_at
            self._report(Outcome.of(int(self._schedule.numbers[row]), sent_s, done_s, error))
        else:
            done_s = time.monotonic() - starts_at
            self._report(Outcome.of(int(self._schedule.numbers[row]), sent_s, done_s, outcome))


def request_of(schedule: Schedule, row: int) -> Request:
    hplm = schedule.hplms[int(schedule.hplm_of[row])]
    text = schedule.texts[int(schedule.text_of[row])]
    deadline_ms = schedule.deadline_ms(row)
    if hplm in schedule.pairs:
        return Request(hplm, *halves(text), deadline_ms=deadline_ms)
    return Request(hplm, text, deadline_ms=deadline_ms)
