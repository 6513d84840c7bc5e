"""Standstills of a model's whole process, after which Triton and the process are out of step.

Triton gives a process one second to show a sign of life while a call of `execute` is open. If the process stands still
for longer, because it is stopped, swapped out or gets no processor, Triton fails the call, frees the memory of its
requests, and takes its late answer for that of the next call. From then on, the process reads memory that is freed,
and dies of it minutes later, or ends tritonserver by an answer that no request waits for. In mode `triton`, a request
may get the answer of another. A process therefore ends itself where a call was open during a standstill.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backends.ending import end_process

LOGGER = logging.getLogger(__name__)
SHORT_CALLS_S = 1.0
"""The shortest standstill that counts where calls take milliseconds."""
LONG_CALLS_S = 0.7
"""The same where a call may take seconds: signs of life come every 0.3 s, the last one before Triton begins to wait."""
_TICK_S = 0.1
_BROUGHT_MEANWHILE_S = 0.5
"""A call that begins sooner after a standstill may have been waiting during it."""
_WAKES_PER_S = 50
"""A thread that waits for the interpreter's lock wakes four times as often; one that stands still does not wake."""


class Standstill:
    """Notices, on a thread of its own, that the process stood still.

    Args:
        limit_s: The shortest standstill that counts.
        on_lost_step: Called where a call was open during a standstill.
    """

    def __init__(self, limit_s: float, on_lost_step: Callable[[], None] = end_process) -> None:
        self._limit_s = limit_s
        self._on_lost_step = on_lost_step
        self._ended_s = -_BROUGHT_MEANWHILE_S
        """The end of the last standstill."""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="standstill", daemon=True)
        self._tick = time.monotonic(), 0
        """When the thread went round last, and how often it had waited until then."""
        self._thread.start()

    @contextmanager
    def call(self) -> Iterator[None]:
        """One call of `execute`."""
        began_s = time.monotonic()
        self._check(began_s - _BROUGHT_MEANWHILE_S)
        yield
        self._check(began_s)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _check(self, since_s: float) -> None:
        """Look for a standstill that has ended since then, or that the thread has not noticed yet."""
        if self._ended_s >= since_s or self._stood_still_s() > 0:
            LOGGER.error("a call of Triton was open while this process stood still; they may be out of step")
            self._on_lost_step()

    def _stood_still_s(self) -> float:
        """Return how long the process stood still since the last tick; 0 where a thread held the interpreter's lock."""
        ticked_s, num_wakes = self._tick
        since_tick_s = time.monotonic() - ticked_s
        if since_tick_s <= self._limit_s:
            return 0.0
        was_awake = self._num_wakes() - num_wakes > _WAKES_PER_S * since_tick_s
        return 0.0 if was_awake else since_tick_s

    def _num_wakes(self) -> int:
        """Return how often the thread has waited until now."""
        # A Path would add its parts to Python's table of interned strings, ten times a second.
        with open(f"/proc/self/task/{self._thread.native_id}/status", encoding="utf-8") as file:
            status = file.read()
        return int(status.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])

    def _run(self) -> None:
        while not self._closed.wait(_TICK_S):
            if (stood_s := self._stood_still_s()) > 0:
                self._ended_s = time.monotonic()
                LOGGER.warning("this process stood still for %.1f s", stood_s)
            self._tick = time.monotonic(), self._num_wakes()
