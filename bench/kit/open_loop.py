"""Requests at the times of a plan, whatever the server does with them: no answer delays another request.

A deadline is planned with its request. Each request carries what is left of it when it is sent; one with nothing left
is not sent. A request is on time if its answer is here before the planned deadline, so a client that falls behind
hides nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from hplm_client import AsyncHplmClient, ClientError


@dataclass(frozen=True)
class Planned:
    """A request, when it is sent, and its deadline, counted from then."""

    at_s: float
    hplm: str
    text: str
    deadline_ms: int

    @property
    def deadline_at_s(self) -> float:
        return self.at_s + self.deadline_ms / 1e3

    def left_ms(self, now_s: float) -> int:
        """Whole milliseconds that are left of the deadline; 0 or less if there is none."""
        return int(1e3 * (self.deadline_at_s - now_s))


@dataclass(frozen=True)
class Sent:
    """Times count from the start of the plan. `sent_s` is None for a request that was not sent."""

    sent_s: float | None
    done_s: float
    error: str | None = None
    code: str | None = None


class Fate(StrEnum):
    """What became of a request.

    ON_TIME, LATE: answered before or after the planned deadline.
    OVERTAKEN: the SDK rejected the answer, which came after the deadline that the request carried.
    EXPIRED: the server rejected it after its deadline, or when it could not be met any more.
    REJECTED: the server rejected it before.
    UNSENT: nothing was left of its deadline when it was to be sent.
    FAILED: any other error.
    """

    ON_TIME = "on time"
    LATE = "late"
    OVERTAKEN = "late on the way"
    EXPIRED = "expired"
    REJECTED = "rejected"
    UNSENT = "not sent"
    FAILED = "failed"


_OVERTAKEN = "before the answer was here"
_EXPIRED = "the deadline pass"
"""Begins what the server says of requests that it has not rejected before their deadline."""


def fate_of(planned: Planned, sent: Sent) -> Fate:
    match sent.error:
        case None if sent.sent_s is None:
            return Fate.UNSENT
        case None:
            return Fate.ON_TIME if sent.done_s <= planned.deadline_at_s else Fate.LATE
        case _ if sent.code != "UNAVAILABLE":
            return Fate.FAILED
        case words if _OVERTAKEN in words:
            return Fate.OVERTAKEN
        case words if _EXPIRED in words:
            return Fate.EXPIRED
        case _:
            return Fate.REJECTED


@dataclass(frozen=True)
class Played:
    """All requests of a plan, in its order."""

    planned: Sequence[Planned]
    sent: Sequence[Sent]
    client_cores: float

    @cached_property
    def fates(self) -> list[Fate]:
        return [fate_of(planned, sent) for planned, sent in zip(self.planned, self.sent, strict=True)]

    def count(self, *fates: Fate) -> int:
        return sum(fate in fates for fate in self.fates)

    def share(self, *fates: Fate) -> float:
        """Of all that were planned."""
        return self.count(*fates) / len(self.planned)

    @property
    def attainment(self) -> float:
        return self.share(Fate.ON_TIME)

    @property
    def admitted(self) -> int:
        """Requests that were sent and not rejected before their deadline."""
        return len(self.planned) - self.count(Fate.REJECTED, Fate.UNSENT)

    @property
    def admitted_on_time(self) -> float:
        return self.count(Fate.ON_TIME) / self.admitted if self.admitted else 1.0

    @property
    def lag_p99_ms(self) -> float:
        """How late requests were sent; a client that is later than a batch has measured itself."""
        lags_s = [
            sent.sent_s - planned.at_s
            for planned, sent in zip(self.planned, self.sent, strict=True)
            if sent.sent_s is not None
        ]
        return 1e3 * float(np.percentile(lags_s, 99)) if lags_s else float("nan")

    def latency_ms(self, percent: float) -> float:
        """Of the answered, from when they were to be sent."""
        pairs = zip(self.planned, self.sent, self.fates, strict=True)
        latencies_s = [sent.done_s - planned.at_s for planned, sent, fate in pairs if fate in (Fate.ON_TIME, Fate.LATE)]
        return 1e3 * float(np.percentile(latencies_s, percent)) if latencies_s else float("nan")

    @property
    def errors(self) -> Counter[str]:
        return Counter(one.error for one in self.sent if one.error is not None)


Ask = Callable[[Planned, int], Awaitable[None]]
"""Sends a request with the milliseconds that are left of its deadline; a `ClientError` where it gets no answer."""


@asynccontextmanager
async def asking_hplm(url: str) -> AsyncIterator[Ask]:
    async with AsyncHplmClient(url, retries=0) as client:

        async def ask(planned: Planned, left_ms: int) -> None:
            await client.infer(planned.hplm, planned.text, deadline_ms=left_ms)

        yield ask


def play(
    url: str, planned: Sequence[Planned], asking: Callable[[str], AbstractAsyncContextManager[Ask]] = asking_hplm
) -> Played:
    """Send each at its time, once, and wait for all outcomes."""
    return asyncio.run(_play(asking(url), planned))


async def _play(asking: AbstractAsyncContextManager[Ask], planned: Sequence[Planned]) -> Played:
    async with asking as ask:
        cpu_s, start_s = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for one in planned:
                wait_s = start_s + one.at_s - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                tasks.append(group.create_task(_sent(ask, one, start_s)))
        taken_s = time.perf_counter() - start_s
    return Played(planned, [task.result() for task in tasks], (time.process_time() - cpu_s) / taken_s)


async def _sent(ask: Ask, planned: Planned, start_s: float) -> Sent:
    sent_s = time.perf_counter() - start_s
    left_ms = planned.left_ms(sent_s)
    if left_ms < 1:
        return Sent(None, sent_s)
    try:
        await ask(planned, left_ms)
    except ClientError as error:
        return Sent(sent_s, time.perf_counter() - start_s, str(error), error.code)
    return Sent(sent_s, time.perf_counter() - start_s)
