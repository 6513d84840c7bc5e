"""Callers of one kind of the SDK's clients, at a given rate, each of whose requests is noted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bench.kit.until_stopped import GoesOn, Tell
from hplm_client import AsyncHplmClient, ClientError, HplmClient

KINDS: Mapping[str, tuple[str, bool]] = {
    "gRPC": ("grpc", False),
    "HTTP": ("http", False),
    "asyncio gRPC": ("grpc", True),
    "asyncio HTTP": ("http", True),
}
"""Protocols, and whether the client is the one of asyncio."""
ANSWERED = ""
_LOOKS_EVERY_S = 1.0
"""Whether it is to stop, where callers pause for long."""
_TRIES_AGAIN_S = 0.05
"""After a connection that could not be made, where callers make no pauses."""


class Ended(NamedTuple):
    """One request: when it was sent and when it ended, on the machine's monotonic clock; its error, or ANSWERED."""

    sent_s: float
    ended_s: float
    error: str
    message: str = ""


@dataclass(frozen=True)
class Callers:
    """Callers of one client; `rate_per_s` is that of all together, and None lets them make no pauses."""

    kind: str
    urls: Mapping[str, str]
    hplms: Sequence[str]
    texts: Sequence[str]
    callers: int
    seed: int
    rate_per_s: float | None = None

    def play(self, goes_on: GoesOn, tell: Tell) -> None:
        """Tell that it begins; ask until it is to stop; then tell all requests, as a list of `Ended`."""
        protocol, is_async = KINDS[self.kind]
        url = f"{protocol}://{self.urls[protocol]}"
        ended: list[Ended] = []
        tell(time.monotonic())
        if is_async:
            asyncio.run(self._ask_async(url, goes_on, ended))
        else:
            self._ask_sync(url, goes_on, ended)
        tell(ended)

    def _ask_sync(self, url: str, goes_on: GoesOn, ended: list[Ended]) -> None:
        with HplmClient(url, retries=0) as client:

            def ask(caller: int) -> None:
                for due_s, hplm, text in self._requests(caller):
                    while goes_on() and (left_s := due_s - time.monotonic()) > 0:
                        time.sleep(min(left_s, _LOOKS_EVERY_S))
                    if not goes_on():
                        return
                    sent_s = time.monotonic()
                    try:
                        client.infer(hplm, text)
                    except ClientError as error:
                        ended.append(_failed(sent_s, error))
                        time.sleep(_TRIES_AGAIN_S)
                    else:
                        ended.append(Ended(sent_s, time.monotonic(), ANSWERED))

            threads = [threading.Thread(target=ask, args=(caller,)) for caller in range(self.callers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    async def _ask_async(self, url: str, goes_on: GoesOn, ended: list[Ended]) -> None:
        async with AsyncHplmClient(url, retries=0) as client, asyncio.TaskGroup() as group:

            async def ask(caller: int) -> None:
                for due_s, hplm, text in self._requests(caller):
                    while goes_on() and (left_s := due_s - time.monotonic()) > 0:
                        await asyncio.sleep(min(left_s, _LOOKS_EVERY_S))
                    if not goes_on():
                        return
                    sent_s = time.monotonic()
                    try:
                        await client.infer(hplm, text)
                    except ClientError as error:
                        ended.append(_failed(sent_s, error))
                        await asyncio.sleep(_TRIES_AGAIN_S)
                    else:
                        ended.append(Ended(sent_s, time.monotonic(), ANSWERED))

            for caller in range(self.callers):
                group.create_task(ask(caller))

    def _requests(self, caller: int) -> Iterator[tuple[float, str, str]]:
        """When one caller asks what, without end; what it was not free to ask at its time is asked at once."""
        rng = np.random.default_rng((self.seed, caller))
        due_s = time.monotonic()
        while True:
            if self.rate_per_s is not None:
                due_s = max(due_s + float(rng.exponential(self.callers / self.rate_per_s)), time.monotonic())
            hplm = self.hplms[int(rng.integers(len(self.hplms)))]
            yield due_s, hplm, self.texts[int(rng.integers(len(self.texts)))]


def _failed(sent_s: float, error: ClientError) -> Ended:
    return Ended(sent_s, time.monotonic(), type(error).__name__, str(error))
