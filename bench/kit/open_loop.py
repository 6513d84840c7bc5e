"""Requests at the times of a load, whatever the server does with them: no answer delays another request."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import numpy as np

from hplm_client import AsyncHplmClient, ClientError


@dataclass(frozen=True)
class Planned:
    """A request, and when it is sent."""

    at_s: float
    hplm: str
    text: str
    deadline_ms: int


@dataclass(frozen=True)
class Sent:
    """How late it was sent, how long it took, and what it was refused with, if it was."""

    lag_s: float
    taken_s: float
    error: str | None

    @property
    def latency_s(self) -> float:
        """Since it was to be sent, so that a client that falls behind hides nothing."""
        return self.lag_s + self.taken_s


_OVERTAKEN = "before the answer was here"
"""What the client says of an answer that left the server in time and came late all the same."""


@dataclass(frozen=True)
class Played:
    """All requests of a load, in the order of their plan."""

    sent: Sequence[Sent]
    client_cores: float

    @property
    def attainment(self) -> float:
        return sum(one.error is None for one in self.sent) / len(self.sent)

    @property
    def overtaken(self) -> int:
        """Answers that left the server in time, and that the client refused as their deadlines had overtaken them."""
        return sum(one.error is not None and _OVERTAKEN in one.error for one in self.sent)

    @property
    def lag_p99_ms(self) -> float:
        """A client that is later than a batch has measured itself."""
        return 1e3 * float(np.percentile([one.lag_s for one in self.sent], 99))

    def latency_ms(self, percent: float) -> float:
        """Of the answered."""
        taken_s = [one.taken_s for one in self.sent if one.error is None]
        return 1e3 * float(np.percentile(taken_s, percent)) if taken_s else float("nan")

    @property
    def errors(self) -> Counter[str]:
        return Counter(one.error for one in self.sent if one.error is not None)


Ask = Callable[[Planned], Awaitable[None]]
"""Sends a request and waits for its answer; a `ClientError` where it gets none."""


@asynccontextmanager
async def asking_hplm(url: str) -> AsyncIterator[Ask]:
    async with AsyncHplmClient(url, retries=0) as client:

        async def ask(planned: Planned) -> None:
            await client.infer(planned.hplm, planned.text, deadline_ms=planned.deadline_ms)

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
                tasks.append(group.create_task(_sent(ask, one, time.perf_counter() - start_s - one.at_s)))
        taken_s = time.perf_counter() - start_s
    return Played([task.result() for task in tasks], (time.process_time() - cpu_s) / taken_s)


async def _sent(ask: Ask, planned: Planned, lag_s: float) -> Sent:
    sent_s = time.perf_counter()
    try:
        await ask(planned)
    except ClientError as error:
        return Sent(lag_s, time.perf_counter() - sent_s, str(error))
    return Sent(lag_s, time.perf_counter() - sent_s, None)
