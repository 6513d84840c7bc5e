"""Processes that must not work at the same time: what pipelining gains is measured against this.

Usage:
    with turns.taken():
        ...
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """Whoever names the same file takes turns; without a file nobody waits for anybody."""

    def __init__(self, path: str | Path | None) -> None:
        self._descriptor = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def taken(self) -> Iterator[None]:
        if self._descriptor is None:
            yield
            return
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
