"""A server's capacity: how many requests a second it answers when it always has enough to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from loadtest.errors import RunError
from loadtest.in_process import play
from loadtest.outcome import Kind
from loadtest.schedule import Schedule
from loadtest.sender import Target

_IN_FLIGHT = 128
_BEGINNING = 0.25
"""The share of the time in which the server fills, which does not count."""


def measure_capacity(target: Target, schedule: Schedule, duration_s: float) -> float:
    """Requests per second; the rows are asked over and over, without deadlines, 128 at a time.

    Raises:
        RunError: The server answered nothing, or a request failed for another reason than too much load.
    """
    without_deadlines = replace(schedule, deadlines_ms=None)
    requests = play(target, without_deadlines, _IN_FLIGHT, duration_s).requests
    if failed := Counter(requests.reasons[requests.kinds == Kind.FAILED].tolist()).most_common(1):
        raise RunError(f"the capacity cannot be measured: {failed[0][0]}")
    first_s = _BEGINNING * duration_s
    answered_s = requests.done_s[requests.answered]
    counted = int(((first_s <= answered_s) & (answered_s < duration_s)).sum())
    if not counted:
        raise RunError(f"the server answered nothing within {duration_s:g} s; its capacity cannot be measured")
    return counted / (duration_s - first_s)
