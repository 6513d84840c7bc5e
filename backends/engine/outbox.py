"""What is on its way to callers: answers, several at once, and errors, which wait for no answers."""

from __future__ import annotations

from collections.abc import Callable

from backends.engine.loop import ANSWER
from backends.engine.open_request import Answered, RespondRequest
from backends.engine.senders import Senders
from backends.errors import HplmError
from backends.heartbeat import Beat

_ANSWERS_AT_ONCE = 4
"""One at a time, the last answer of a large batch leaves tens of milliseconds after the first (`bench.latency`)."""


class Outbox:
    """The senders of an engine.

    Args:
        most_answers: Answers that may wait to be sent; the answering thread gets no further ahead.
    """

    def __init__(self, most_answers: int) -> None:
        self._answers = Senders[Answered](_ANSWERS_AT_ONCE, most_answers)
        self._errors = Senders[Answered]()

    def send(self, respond: RespondRequest, answers: Answered) -> None:
        (self._errors if isinstance(answers, HplmError) else self._answers).send(respond, answers)

    def watched(self, beat_of: Callable[[str], Beat]) -> Callable[[str], Beat]:
        """Let the loop that answers fall silent while a sending hangs, so that the watchdog notices."""

        def watched_beat_of(loop: str) -> Beat:
            beat = beat_of(loop)
            return (lambda: None if self._answers.are_stuck() else beat()) if loop == ANSWER else beat

        return watched_beat_of

    def close(self, timeout_s: float | None = None) -> None:
        """Return once all is sent, or after that time for each kind."""
        self._errors.close(timeout_s)
        self._answers.close(timeout_s)
