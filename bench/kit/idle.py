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
_LONGEST_REST_S = 180
"""A flood of rows without deadlines leaves a minute of work behind."""


class Measured(Protocol):
    @property
    def metrics_url(self) -> str: ...


def wait_until_idle(server: Measured) -> None:
    """Requests that clients have given up would be computed beside the next server's.

    They wait in Triton's queues or in the engine, whose last batch has run when no row has waited for seconds.

    Raises:
        HplmError: That takes minutes; says what is still counted, which may be requests that were lost.
    """
    idle_for, waiting = 0, dict[str, float]()
    for _ in range(_LONGEST_REST_S):
        time.sleep(1.0)
        with urllib.request.urlopen(server.metrics_url, timeout=_METRICS_TIMEOUT_S) as page:
            waiting = counted_waiting(page.read().decode())
        idle_for = idle_for + 1 if waiting and not any(waiting.values()) else 0
        if idle_for == _IDLE_S:
            return
    left = ", ".join(f"{gauge} {value:g}" for gauge, value in waiting.items() if value) or "nothing that is counted"
    raise HplmError(f"a server still computes {_LONGEST_REST_S} s after its load: {left}")


def counted_waiting(page: str) -> dict[str, float]:
    """Return the gauges of a page of metrics that count what waits."""
    return {gauge: float(value) for gauge, value in _WAITING.findall(page)}
