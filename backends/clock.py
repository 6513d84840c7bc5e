"""The one clock of deadlines: monotonic, and the same in all processes of a machine."""

from __future__ import annotations

import time


def now_us() -> int:
    return time.monotonic_ns() // 1000
