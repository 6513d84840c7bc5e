"""Clients in processes of their own, for a server that answers more than one process can ask."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context
from types import TracebackType
from typing import Self

import numpy as np

from bench.kit.saturation import HplmText, saturate
from loadtest.in_process import Played
from loadtest.requests import Requests
from loadtest.sender import Effort


class ClientProcesses:
    """As many processes as `count`, which keep a server full together."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._executor = ProcessPoolExecutor(count, get_context("spawn"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown()

    def saturate(self, url: str, rows: Sequence[HplmText], in_flight: int) -> Played:
        """Ask all rows, so many at a time in all processes together; every one must be answered."""
        starts_at = time.monotonic()
        shares = [rows[number :: self._count] for number in range(self._count)]
        of_each = in_flight // self._count
        futures = [self._executor.submit(saturate, url, share, of_each, starts_at=starts_at) for share in shares]
        return together([future.result() for future in futures])


def together(parts: Sequence[Played]) -> Played:
    """Return loads that were played side by side, with times on one clock, as one."""
    columns = {
        column.name: np.concatenate([getattr(part.requests, column.name) for part in parts])
        for column in fields(Requests)
    }
    efforts = [part.effort for part in parts]
    wall_s, cpu_s = max(effort.wall_s for effort in efforts), sum(effort.cpu_s for effort in efforts)
    return Played(Requests(**columns), Effort(wall_s, cpu_s))
