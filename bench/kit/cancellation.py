"""A thousand requests that are cancelled while the engine stands still, and what becomes of their rows."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc as triton

from backends.errors import UnavailableError
from bench.kit.server_metrics import figure_of
from builder.serving import TritonServer
from hplm_client.codec import Call, inputs_of

_ENSEMBLE = "hplm"
_WAITING = "hplm_waiting_rows"
_PATIENCE_S = 120.0
_REPORTS_S = 5.0
"""The server's figures are two seconds old at most; on a busy machine a little more."""


@dataclass(frozen=True)
class Cancelled:
    """`left_s` is from the cancelling until no row waits, seen by figures that are two seconds old at most.

    Triton 24.10 does not tell a running step of an ensemble, so rows leave only by being computed.
    """

    waiting_while_stopped: int
    batches: int
    left_s: float


class Cancellation:
    """Asks a server whose engine takes turns with this by the file `turns`."""

    def __init__(self, server: TritonServer, turns: Path, hplms: Sequence[str], text: str, batch_rows: int) -> None:
        self._server = server
        self._turns = turns
        self._client = triton.InferenceServerClient(server.grpc_url)
        self._texts = [inputs_of(Call(hplm, (text.encode(),), {}), triton.InferInput) for hplm in hplms]
        self._batch_rows = batch_rows

    def close(self) -> None:
        self._client.close()

    def cancel(self, count: int) -> Cancelled:
        """Send this many requests through the ensemble and cancel them while the engine stands still."""
        open_calls = _OpenCalls(count)
        with self._stopped():
            calls = [
                self._client.async_infer(_ENSEMBLE, self._texts[number % len(self._texts)], open_calls.end)
                for number in range(count)
            ]
            # All that wait, but for a batch that runs, one that is staged, and one that is being chosen.
            self._wait_until(lambda: self._figure(_WAITING) >= count - 3 * self._batch_rows, "the requests to arrive")
            batches = self._figure("hplm_batches_total")
            began = time.monotonic()
            for call in calls:
                call.cancel()
            left_at = self._seen_empty_within(_REPORTS_S)
            still_waiting = self._figure(_WAITING)
        if left_at is None:
            self._wait_until(lambda: self._figure(_WAITING) == 0, "the rows to leave")
            left_at = time.monotonic()
        self._wait_until(lambda: open_calls.count == 0, "the calls to end")
        time.sleep(_REPORTS_S)
        return Cancelled(
            waiting_while_stopped=int(still_waiting),
            batches=int(self._figure("hplm_batches_total") - batches),
            left_s=left_at - began,
        )

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        with self._turns.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _seen_empty_within(self, limit_s: float) -> float | None:
        ends_at = time.monotonic() + limit_s
        while time.monotonic() < ends_at:
            if self._figure(_WAITING) == 0:
                return time.monotonic()
            time.sleep(0.05)
        return None

    def _figure(self, name: str) -> float:
        return figure_of(self._server, name)

    @staticmethod
    def _wait_until(is_so: Callable[[], bool], what: str) -> None:
        ends_at = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() > ends_at:
                raise UnavailableError(f"waited {_PATIENCE_S:g} s for {what}")
            time.sleep(0.05)


class _OpenCalls:
    """Counts down as calls come to an end, whichever."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()

    def end(self, result: object, error: object) -> None:
        with self._lock:
            self.count -= 1
