"""A lower model whose encoding is held back, for tests of the queue in front of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from backends.errors import HplmError
from backends.lower.service import AcceptedRequest, HiddenRequest, LowerService

PATIENCE_S = 30.0


class Gate:
    """Holds the encoding back, and notes what was encoded in which order."""

    def __init__(self, service: LowerService, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.encoding = threading.Event()
        self.hplms: list[str] = []
        encode = service.encode_accepted

        def encode_when_open(requests: Sequence[AcceptedRequest]) -> Any:
            self.encoding.set()
            assert self.opened.wait(PATIENCE_S)
            self.hplms += [request.rows[0].entry.id for request in requests]
            return encode(requests)

        monkeypatch.setattr(service, "encode_accepted", encode_when_open)


@dataclass
class Clock:
    """The time of the queue and of deadlines, which stands still but for what a test adds."""

    now_us: int


class Answers:
    """What became of requests, in the order of their answers."""

    def __init__(self) -> None:
        self.each: list[HiddenRequest | HplmError] = []

    def wait(self, count: int) -> list[HiddenRequest | HplmError]:
        end = time.monotonic() + PATIENCE_S
        while len(self.each) < count:
            assert time.monotonic() < end, f"{len(self.each)} of {count} answers"
            time.sleep(0.002)
        return self.each
