"""Which version of an hPLM was live when, for judging answers that came in meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from hplm_client import ClientError


@dataclass(frozen=True)
class Asked:
    """One request, with times of this process's monotonic clock."""

    hplm: str
    sent_s: float
    received_s: float
    version: int | None
    error: ClientError | None = None
    scores: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Change:
    """From some moment between the two times on `version` was live; None for a deletion."""

    version: int | None
    begun_s: float
    ended_s: float


class Timeline:
    """What was live when, as the operator knows it; read and written by several threads."""

    def __init__(self) -> None:
        self._changes: dict[str, list[Change]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def change(self, hplm: str) -> Iterator[list[int]]:
        """The block publishes, and puts the version that is live then into the list; none is a deletion."""
        published: list[int] = []
        begun_s = time.monotonic()
        yield published
        with self._lock:
            change = Change(published[0] if published else None, begun_s, time.monotonic())
            self._changes.setdefault(hplm, []).append(change)

    def was_live(self, asked: Asked, allowance_s: float) -> bool:
        changes = self._changes[asked.hplm]
        ends = [change.ended_s for change in changes[1:]] + [math.inf]
        return any(
            change.version == asked.version and change.begun_s <= asked.received_s and end >= asked.sent_s - allowance_s
            for change, end in zip(changes, ends, strict=True)
        )

    def was_deleted_under_way(self, asked: Asked) -> bool:
        return any(
            change.version is None and change.ended_s >= asked.sent_s and change.begun_s <= asked.received_s
            for change in self._changes[asked.hplm]
        )
