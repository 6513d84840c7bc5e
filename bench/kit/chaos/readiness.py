"""A watch beside a server: each 100 ms what `/readyz` says, and whether a canary of the bench's own is answered.

The canary asks over HTTP with a deadline. It fails unless an outcome of the models comes soon after; being rejected is
such an outcome, as a server under overload is ready and rejects.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from bench.kit.supervised import SupervisedServer
from hplm_client import AsyncHplmClient, ClientError, UnavailableError

EVERY_S = 0.1
_DEADLINE_MS = 1000
_CANARY_S = 2.0
_PROBE_S = 2.0
_POLL_S = 0.02


class Canary(StrEnum):
    ANSWERED = "answered"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True)
class Sample:
    """One look, with times of the monotonic clock.

    Attributes:
        at_s: When both were asked.
        is_ready: Whether `/readyz` said 200.
        why: The first reason of a 503.
        canary: What became of the canary.
        done_s: When that was known.
    """

    at_s: float
    is_ready: bool
    why: str
    canary: Canary
    done_s: float

    @property
    def is_whole(self) -> bool:
        return self.is_ready and self.canary is Canary.ANSWERED

    @property
    def lies(self) -> bool:
        return self.is_ready and self.canary is Canary.FAILED


class Watch:
    """Looks on a thread of its own as long as its block lasts.

    Usage:
        with Watch(server, "tenant0/task", "a text") as watch:
            watch.wait(lambda sample: sample.is_whole, after_s=time.monotonic(), timeout_s=60)
        watch.samples
    """

    def __init__(self, server: SupervisedServer, hplm: str, text: str) -> None:
        self._health = server.health_url.removeprefix("http://").partition(":")
        self._url = f"http://{server.http_url}"
        self._hplm, self._text = hplm, text
        self._samples: list[Sample] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._look()), name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    def samples(self) -> list[Sample]:
        """All that are known by now, in the order of their times."""
        return sorted(self._samples, key=lambda sample: sample.at_s)

    def wait(self, condition: Callable[[Sample], bool], after_s: float, timeout_s: float) -> Sample | None:
        """Wait for a sample of such a kind, begun after that moment; None where none comes in time."""
        end, seen = time.monotonic() + timeout_s, 0
        while time.monotonic() < end and self._thread.is_alive():
            new = self._samples[seen:]
            seen += len(new)
            found = [sample for sample in new if sample.at_s > after_s and condition(sample)]
            if found:
                return min(found, key=lambda sample: sample.at_s)
            time.sleep(_POLL_S)
        return None

    async def _look(self) -> None:
        async with AsyncHplmClient(self._url, retries=0) as client, asyncio.TaskGroup() as group:
            at_s = time.monotonic()
            while not self._stopping.is_set():
                group.create_task(self._sample(client, time.monotonic()))
                at_s = max(at_s + EVERY_S, time.monotonic())
                await asyncio.sleep(at_s - time.monotonic())

    async def _sample(self, client: AsyncHplmClient, at_s: float) -> None:
        (is_ready, why), canary = await asyncio.gather(self._readyz(), self._canary(client))
        self._samples.append(Sample(at_s, is_ready, why, canary, time.monotonic()))

    async def _readyz(self) -> tuple[bool, str]:
        """Ask as a load balancer does; where nothing answers, the server is not ready."""
        host, _, port = self._health
        try:
            async with asyncio.timeout(_PROBE_S):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                writer.close()
        except (OSError, TimeoutError) as error:
            return False, f"no answer: {error or type(error).__name__}"
        if b" 200 " in head.split(b"\r\n")[0]:
            return True, ""
        with suppress(ValueError, LookupError):
            return False, str(json.loads(body)["reasons"][0])
        return False, "no reason"

    async def _canary(self, client: AsyncHplmClient) -> Canary:
        try:
            await client.infer(self._hplm, self._text, deadline_ms=_DEADLINE_MS, timeout_s=_CANARY_S)
        except UnavailableError as error:
            return Canary.REJECTED if error.reason is not None else Canary.FAILED
        except ClientError:
            return Canary.FAILED
        return Canary.ANSWERED
