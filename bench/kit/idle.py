"""Waiting until a server has nothing left to do."""

from __future__ import annotations

import re
import time
import urllib.request
from typing import Protocol

from backends.errors import HplmError

_WAITING = re.compile(r"^((?:nv_inference_pending_request_count|hplm_waiting_rows)\{[^}]*\}) (\S+)", re.MULTILINE)
_METRICS_TIMEOUT_S = 10.0
_IDLE_S = 3
_LONGEST_REST_S = 180.0
"""A flood of rows without deadlines leaves a minute of work behind."""


class Measured(Protocol):
    @property
    def metrics_url(self) -> str: ...


def wait_until_idle(server: Measured, longest_s: float = _LONGEST_REST_S) -> None:
    """Requests that clients have given up would be computed beside the next server's.

    They wait in Triton's queues or in the engine, whose last batch has run when no row has waited for seconds.

    Raises:
        HplmError: That takes too long; says what is still counted, which may be requests that were lost.
    """
    idle_for, left, end = 0, "", time.monotonic() + longest_s
    while time.monotonic() < end:
        time.sleep(1.0)
        try:
            with urllib.request.urlopen(server.metrics_url, timeout=_METRICS_TIMEOUT_S) as page:
                waiting = counted_waiting(page.read().decode())
        except OSError as error:  # a busy machine answers later
            idle_for, left = 0, f"{server.metrics_url} does not answer: {error}"
            continue
        left = ", ".join(f"{gauge} {value:g}" for gauge, value in waiting.items() if value) or "nothing is counted"
        idle_for = idle_for + 1 if waiting and not any(waiting.values()) else 0
        if idle_for == _IDLE_S:
            return
    raise HplmError(f"a server does not rest {longest_s:g} s after its load: {left}")


def counted_waiting(page: str) -> dict[str, float]:
    """Return the gauges of a page of metrics that count what waits."""
    return {gauge: float(value) for gauge, value in _WAITING.findall(page)}
