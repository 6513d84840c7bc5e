"""Requests of any content through the queue in front of `hplm_lower`: each is rejected, or answered once."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import numpy as np

from backends.errors import HplmError
from backends.home import Home
from backends.lower.encode_queue import Encoded, EncodeQueue
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing, QueueSettings, TextLimits
from backends.registry.snapshot import RegistrySnapshot
from bench.kit.fuzz.copied_home import copied_home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets.lower import GOOD, bad_request

_PATIENCE_S = 5.0
_LIMITS = TextLimits(max_text_bytes=10_000, max_request_bytes=30_000)


class _Answers:
    """What has become of some requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._found: dict[int, list[Encoded]] = {}

    def note(self, number: int, answer: Encoded) -> None:
        with self._changed:
            self._found.setdefault(number, []).append(answer)
            self._changed.notify_all()

    def all(self, count: int) -> list[Encoded]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._found) == count, _PATIENCE_S):
                raise HarmedError("a request is never answered")
            if any(len(answers) > 1 for answers in self._found.values()):
                raise HarmedError("a request is answered twice")
            return [self._found[number][0] for number in range(count)]


class Waiting(Target):
    """Small limits, so that requests are also rejected for want of room."""

    name = "waiting"
    cases = 20_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._snapshot = RegistrySnapshot.open(copied_home(home, scratch))
        filling = FillingSettings(Missing.FALLBACK)
        self._service = LowerService(Home(scratch / "home"), self._snapshot, filling, limits=_LIMITS)
        self._service.warm_up()
        self._failures = 0
        self._queue = EncodeQueue(self._service, QueueSettings(max_rows=20, max_bytes=60_000), self._fail)
        self._alone = self._answers([])[0]

    def attempt(self, draw: Draw) -> None:
        good, *answers = self._answers([bad_request(draw) for _ in range(draw.choice((1, 2, 3)))])
        self._require_good(good)
        for answer in answers:
            if isinstance(answer, HplmError):
                raise answer

    def close(self) -> None:
        self._queue.close()
        self._service.close()
        self._snapshot.close()

    def _fail(self) -> None:
        self._failures += 1

    def _require_good(self, answer: Encoded) -> None:
        if self._failures:
            raise HarmedError("the thread of the queue has ended")
        if not isinstance(answer, HiddenRequest) or not isinstance(self._alone, HiddenRequest):
            raise HarmedError(f"a good request is rejected: {answer}")
        if not np.array_equal(answer.hidden, self._alone.hidden):
            raise HarmedError("a good request is encoded otherwise among bad ones")

    def _answers(self, bad: list[TextRequest]) -> list[Encoded]:
        answers, requests = _Answers(), [GOOD, *bad]
        self._queue.begin_call()
        for number, request in enumerate(requests):
            rejection = self._queue.add(request, partial(answers.note, number))
            if rejection is not None:
                answers.note(number, rejection)
        self._queue.end_call()
        return answers.all(len(requests))
