"""How many requests a second a server answers when it always has enough to do: what a load is a multiple of."""

from __future__ import annotations

import asyncio
import time

from hplm_client import AsyncHplmClient, UnavailableError
from loadtest.errors import RunError
from loadtest.schedule import Schedule
from loadtest.sender import Target, request_of

_IN_FLIGHT = 128
_PAUSE_S = 0.02
_BEGINNING = 0.25
"""Share of the time in which the server fills, which does not count."""


def measure_capacity(target: Target, schedule: Schedule, duration_s: float) -> float:
    """Requests per second. The rows of the schedule are asked over and over, without deadlines, 128 at a time."""
    return asyncio.run(_measure(target, schedule, duration_s))


async def _measure(target: Target, schedule: Schedule, duration_s: float) -> float:
    answered_s: list[float] = []
    requests = [request_of(schedule, row) for row in range(len(schedule))]
    began = time.monotonic()
    place = 0

    async def ask(client: AsyncHplmClient) -> None:
        nonlocal place
        while time.monotonic() - began < duration_s:
            request = requests[place % len(requests)]
            place += 1
            try:
                await client.infer(request.hplm, request.text, request.text_pair)
                answered_s.append(time.monotonic() - began)
            except UnavailableError:  # so much waits as may: the server has enough to do
                await asyncio.sleep(_PAUSE_S)

    async with AsyncHplmClient(target.url, target.protocol) as client:
        await asyncio.gather(*(ask(client) for _ in range(_IN_FLIGHT)))
    first_s = _BEGINNING * duration_s
    counted = sum(first_s <= at_s < duration_s for at_s in answered_s)
    if not counted:
        raise RunError(f"the server answered nothing within {duration_s:g} s; its capacity cannot be measured")
    return counted / (duration_s - first_s)
