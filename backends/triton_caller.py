"""The caller of one Triton request, answered from any thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from backends.errors import HplmError, presentable
from backends.trace import Lane, span

LOGGER = logging.getLogger(__name__)
Answer = TypeVar("Answer")


def _ignore() -> None:
    pass


class Caller(Generic[Answer]):
    """Answers a request once, because Triton frees the sender's request then.

    Args:
        sender: Triton's response sender of the request.
        make_response: Makes Triton's response of an answer or an error.
        final: Triton's flag of a request's last response.
        lane: Lane of the sending in a trace.
        on_answered: Called once the answer is sent.
    """

    def __init__(
        self,
        sender: Any,
        make_response: Callable[[Answer | HplmError], Any],
        final: int,
        lane: Lane = Lane.ANSWERING,
        on_answered: Callable[[], None] = _ignore,
    ) -> None:
        self._sender = sender
        self._make_response = make_response
        self._final = final
        self._lane = lane
        self._on_answered = on_answered
        self._answered = False
        self._lock = threading.Lock()

    def respond(self, answer: Answer | HplmError) -> None:
        with self._lock:
            if not self._answered:
                self._answered = True
                self._respond(answer)
                self._on_answered()

    def _respond(self, answer: Answer | HplmError) -> None:
        try:
            with span(self._lane, "send"):
                self._sender.send(self._make_response(answer), flags=self._final)
        except Exception as error:  # shared memory may be full; a short error may still get through
            LOGGER.warning("an answer could not be sent: %s", error)
            with suppress(Exception):
                self._sender.send(self._make_response(presentable(error)), flags=self._final)
