"""A request whose rows are answered one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from backends.engine.job import Answer, Respond
from backends.errors import HplmError

Answered = list[Answer] | HplmError
RespondRequest = Callable[[Answered], None]
"""Takes one answer per row of the request, or the request's error; called once, from any thread."""


class OpenRequest:
    """Collects the answers of a request's rows; the first error, or the last answer, closes it."""

    def __init__(self, num_rows: int, respond: RespondRequest) -> None:
        self._answers: dict[int, Answer] = {}
        self._num_rows = num_rows
        self._respond = respond
        self._open = True
        self._lock = threading.Lock()

    def is_open(self) -> bool:
        return self._open

    def row(self, number: int) -> Respond:
        return lambda answer: self._add(number, answer)

    def _add(self, number: int, answer: Answer | HplmError) -> None:
        with self._lock:
            if not self._open:
                return
            if not isinstance(answer, HplmError):
                self._answers[number] = answer
                if len(self._answers) < self._num_rows:
                    return
            self._open = False
        if isinstance(answer, HplmError):
            self._respond(answer)
        else:
            self._respond([self._answers[number] for number in range(self._num_rows)])
