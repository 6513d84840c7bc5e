"""Loads that Triton's own gRPC client plays in a process of its own: a burst, callers who ask again, an open loop.

No SDK: nothing here waits after a rejection, or asks less because the server is full.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import count
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from builder.export.model_names import ENSEMBLE

_REST_S = 30.0
"""How long answers are waited for after the last request."""
_CONNECT_S = 0.3
REJECTED = "StatusCode.UNAVAILABLE"


@dataclass(frozen=True)
class Sending:
    """One request as planned: when, from the beginning of the load; its rows are of one hPLM."""

    at_s: float
    hplm: str
    texts: tuple[str, ...]
    deadline_ms: int | None = None


@dataclass(frozen=True, eq=False)
class Replies:
    """What became of the requests, in the order in which they ended; times from the beginning of the load.

    `due_s` is infinite without a deadline; `status` is empty for an answer. Shape: [requests] each.
    """

    sent_s: NDArray[np.float64]
    done_s: NDArray[np.float64]
    due_s: NDArray[np.float64]
    status: NDArray[np.str_]
    began_at: float
    """On the machine's monotonic clock."""
    unanswered: int = 0
    messages: Mapping[str, int] = field(default_factory=dict)
    """Messages of a few errors, and their counts."""

    @property
    def in_time(self) -> NDArray[np.bool_]:
        return np.logical_and(self.status == "", self.done_s <= self.due_s)

    @property
    def rejected(self) -> NDArray[np.bool_]:
        return np.asarray(self.status == REJECTED)

    def rejection_ms(self) -> NDArray[np.float64]:
        """How long each rejected request waited for its rejection."""
        return 1e3 * (self.done_s - self.sent_s)[self.rejected]

    def goodput(self, begin_s: float, end_s: float) -> int:
        """Answers in time within a part of the load."""
        return int((self.in_time & (self.done_s >= begin_s) & (self.done_s < end_s)).sum())


class StockClient:
    """Sends requests without waiting for answers, and notes both."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)
        self._client.is_server_ready()
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_sent = 0
        self._ended: list[tuple[float, float, float, str]] = []
        self._messages: dict[str, int] = {}

    def begin(self, at: float) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        self._began = at

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began

    def send(self, sending: Sending, due_s: float, on_end: Callable[[], None] = lambda: None) -> None:
        """Send with what is left until `due_s` for a deadline."""
        parameters = None if due_s == np.inf else {"deadline_ms": max(1, int(1e3 * (due_s - self.now_s)))}
        self.infer(ENSEMBLE, _inputs(sending.hplm, sending.texts), due_s, on_end, parameters)

    def infer(
        self,
        model: str,
        inputs: list[Any],
        due_s: float = np.inf,
        on_end: Callable[[], None] = lambda: None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Send to any model."""
        with self._lock:
            self._num_sent += 1
        ended = partial(self._note, self.now_s, due_s, on_end)
        self._client.async_infer(model, inputs, ended, parameters=parameters)

    def _note(
        self,
        sent_s: float,
        due_s: float,
        on_end: Callable[[], None],
        result: object,
        error: InferenceServerException | None,
    ) -> None:
        done_s = self.now_s
        with self._changed:
            self._ended.append((sent_s, done_s, due_s, "" if error is None else str(error.status())))
            if error is not None and len(self._messages) < 20:
                message = str(error.message())[:120]
                self._messages[message] = self._messages.get(message, 0) + 1
            self._changed.notify_all()
        on_end()

    def replies(self) -> Replies:
        """Wait for what is under way."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) == self._num_sent, _REST_S)
            ended = list(self._ended)
        times_s = np.array([times_s for *times_s, _ in ended], np.float64).reshape(-1, 3)
        status = np.array([status for *_, status in ended], np.str_)
        unanswered = self._num_sent - len(ended)
        sent_s, done_s, due_s = times_s.T
        return Replies(sent_s, done_s, due_s, status, self._began, unanswered, self._messages)


@lru_cache(maxsize=4096)
def _inputs(hplm: str, texts: tuple[str, ...]) -> list[Any]:
    inputs = []
    for name, values in (("MODEL", [hplm] * len(texts)), ("TEXT", texts)):
        tensor = triton.InferInput(name, [len(texts), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([value.encode() for value in values], np.object_).reshape(-1, 1))
        inputs.append(tensor)
    return inputs


def send_on_time(url: str, begins_at: float, sendings: Sequence[Sending]) -> Replies:
    """Open loop: each request leaves at its time, however many wait; deadlines count from then."""
    client = StockClient(url)
    client.begin(begins_at)
    for sending in sendings:
        ahead_s = sending.at_s - client.now_s
        if ahead_s > 0:
            time.sleep(ahead_s)
        due_s = np.inf if sending.deadline_ms is None else sending.at_s + sending.deadline_ms / 1e3
        client.send(sending, due_s)
    return client.replies()


def ask_again_at_once(
    url: str, begins_at: float, sendings: Sequence[Sending], callers: int, duration_s: float
) -> Replies:
    """Closed loop: each caller sends its next request when the last one has ended, however it ended."""
    client = StockClient(url)
    numbers = count()

    def ask() -> None:
        if client.now_s < duration_s:
            sending = sendings[next(numbers) % len(sendings)]
            deadline_s = np.inf if sending.deadline_ms is None else sending.deadline_ms / 1e3
            client.send(sending, client.now_s + deadline_s, ask)

    client.begin(begins_at)
    for _ in range(callers):
        ask()
    time.sleep(max(0.0, duration_s - client.now_s))
    return client.replies()


class ClientProcess:
    """A load in a process of its own.

    Usage:
        with ClientProcess(send_on_time, url, sendings) as client:
            client.start()
            client.cpu_s()          # so far
            replies = client.replies()
    """

    def __init__(self, play: Callable[..., Replies], url: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_play, args=(theirs, play, url, arguments), daemon=True)

    def __enter__(self) -> ClientProcess:
        self._process.start()
        self._ours.recv()  # it has loaded what it needs
        return self

    def __exit__(self, *_: object) -> None:
        self._process.join(1.0)
        if self._process.is_alive():
            self._process.terminate()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def start(self) -> float:
        """Begin the load in a moment; returns when, on the machine's monotonic clock."""
        begins_at = time.monotonic() + _CONNECT_S
        self._ours.send(begins_at)
        return begins_at

    def replies(self) -> Replies:
        replies = self._ours.recv()
        assert isinstance(replies, Replies)
        return replies


def _play(pipe: Any, play: Callable[..., Replies], url: str, arguments: Sequence[Any]) -> None:
    pipe.send(None)
    begins_at = pipe.recv()
    pipe.send(play(url, begins_at, *arguments))
