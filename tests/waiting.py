"""Waiting for something to happen."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 30.0
"""Only a broken product takes longer, on a slow and busy machine too."""
_ATTEMPTS = 3


def wait_until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def seconds_at_best(act: Callable[[], object], enough_s: float) -> float:
    """Act until that takes less than `enough_s`, three times at most; return how long it took last.

    A machine that stalls makes one attempt slow, a slow product makes all.
    """
    for _ in range(_ATTEMPTS):
        began_s = time.monotonic()
        act()
        took_s = time.monotonic() - began_s
        if took_s < enough_s:
            break
    return took_s
