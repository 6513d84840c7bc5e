"""Waiting for something to happen."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 30.0
"""Only a broken product takes longer, on a slow and busy machine too."""


def wait_until(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.01)
