"""Clients of a fleet, in a process of their own: they keep it full, play a schedule, or ask one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self

from bench.kit.saturation import LONGEST_ANSWER_S, HplmText
from bench.kit.triton_client import open_triton
from hplm_client import HplmClient, Request
from hplm_client.codec import Call
from loadtest.in_process import Played, play
from loadtest.schedule import Row, Schedule
from loadtest.sender import Target


class FleetClients:
    """One process for all loads of a bench, which begins when it is first asked.

    Args:
        cores: Where it may run; by default wherever this process may.
    """

    def __init__(self, cores: Sequence[int] | None = None) -> None:
        initializer = None if cores is None else partial(os.sched_setaffinity, 0, cores)
        self._executor = ProcessPoolExecutor(1, get_context("spawn"), initializer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def full(self, url: str, rows: Sequence[HplmText], in_flight: int, is_routed: bool = True) -> Played:
        """Ask all rows, so many at a time; each must be answered. Without `is_routed` the gateway is told no hPLM."""
        return self._executor.submit(_full, url, rows, in_flight, is_routed).result()

    def begin(self, url: str, rows: Sequence[Row], starts_at: float) -> Future[Played]:
        """Play a schedule from a moment of the monotonic clock on."""
        return self._executor.submit(_scheduled, url, Schedule.of(rows), starts_at)

    def alone_us(self, urls: Sequence[str], rows: Sequence[HplmText]) -> list[list[float]]:
        """Ask each row at each URL in turn, one request at a time; returns the times by URL."""
        return self._executor.submit(_alone_us, urls, rows).result()


def _full(url: str, rows: Sequence[HplmText], in_flight: int, is_routed: bool) -> Played:
    schedule = Schedule.of(Row(0.0, hplm, text) for hplm, text in rows)
    open_ask = partial(open_triton, options=_routed if is_routed else _unrouted)
    played = play(Target(url, timeout_s=LONGEST_ANSWER_S), schedule, in_flight, open_ask=open_ask)
    played.require_all_answered()
    return played


def _routed(request: Request) -> dict[str, Any]:
    """What the SDK sends beside a request."""
    return {"headers": Call(request.hplm, (), {}).headers}


def _unrouted(_: Request) -> dict[str, Any]:
    return {}


def _scheduled(url: str, schedule: Schedule, starts_at: float) -> Played:
    return play(Target(url), schedule, starts_at=starts_at)


def _alone_us(urls: Sequence[str], rows: Sequence[HplmText]) -> list[list[float]]:
    clients = [HplmClient(url, retries=0) for url in urls]
    taken_us: list[list[float]] = [[] for _ in urls]
    try:
        for number, (hplm, text) in enumerate(rows):
            # The second of two equal requests finds what the first has loaded, so each URL is first equally often.
            for turn in range(len(urls)):
                which = (number + turn) % len(urls)
                began = time.perf_counter()
                clients[which].infer(hplm, text)
                taken_us[which].append(1e6 * (time.perf_counter() - began))
    finally:
        for client in clients:
            client.close()
    return taken_us
