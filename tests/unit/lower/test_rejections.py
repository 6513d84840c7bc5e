from __future__ import annotations

import threading
import time

from backends.errors import HplmError
from backends.lower.rejections import Rejections
from backends.scheduling.rejection import queue_full
from waiting import LIMIT_S


class Heard:
    """Whom rejections were told to, and when."""

    def __init__(self, count: int) -> None:
        self.moments: list[tuple[int, float]] = []
        self.all = threading.Event()
        self._count = count

    def by(self, number: int, error: HplmError) -> None:
        self.moments.append((number, time.monotonic()))
        if len(self.moments) == self._count:
            self.all.set()


def test_each_is_told_once_in_its_turn_and_not_at_once() -> None:
    rejections, heard = Rejections(), Heard(40)
    began = time.monotonic()
    for number in range(40):
        rejections.add(queue_full(number), lambda error, number=number: heard.by(number, error))  # type: ignore[misc]
    assert heard.all.wait(LIMIT_S)
    rejections.close()
    assert [number for number, _ in heard.moments] == list(range(40))
    assert all(moment - began >= 0.005 * (number + 1) - 0.001 for number, moment in heard.moments)


def test_closing_tells_all_that_wait_and_those_that_come_later() -> None:
    rejections, heard = Rejections(), Heard(300)
    for number in range(299):
        rejections.add(queue_full(number), lambda error, number=number: heard.by(number, error))  # type: ignore[misc]
    rejections.close()
    assert len(heard.moments) == 299
    rejections.add(queue_full(299), lambda error: heard.by(299, error))
    assert len(heard.moments) == 300
