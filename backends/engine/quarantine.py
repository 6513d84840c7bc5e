"""hPLMs that have just failed by their own fault: computed again at once, they would cost the others time."""

from __future__ import annotations

import threading
import time

from backends.errors import HplmError

_KEPT_S = 30.0


class Quarantine:
    """Errors by hPLM key, each the answer of that hPLM's rows for a while. Safe among threads."""

    def __init__(self) -> None:
        self._by_key: dict[int, tuple[float, HplmError]] = {}
        self._lock = threading.Lock()

    def add(self, key: int, error: HplmError) -> None:
        now_s = time.monotonic()
        with self._lock:
            self._by_key = {other: kept for other, kept in self._by_key.items() if now_s < kept[0]}
            # Without its trace, which holds the tensors of the failed run.
            self._by_key[key] = now_s + _KEPT_S, error.with_traceback(None)

    def error(self, key: int) -> HplmError | None:
        """The error that keeps this hPLM out; None where it may run."""
        if not self._by_key:
            return None
        with self._lock:
            kept = self._by_key.get(key)
            if kept is not None and time.monotonic() >= kept[0]:
                del self._by_key[key]
                return None
        return None if kept is None else kept[1]
