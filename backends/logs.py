"""The log lines of a model's process: their form, and a limit on lines that repeat.

Usage:
    configure_logging("hplm_upper_0_0")
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

WINDOW_S = 60.0
SAME_LINES = 3
"""Lines with the same text that pass in a window."""
ALIKE_LINES = 100
"""Lines that pass in a window and differ in their values only, such as the name of an hPLM."""
_MOST_KEYS = 2_000


def configure_logging(process: str) -> None:
    """Write lines from INFO on to stderr, which `hplm serve` leads to its log, with the time and this name."""
    handler = logging.StreamHandler()
    handler.addFilter(RepeatLimit())
    form = f"%(asctime)s.%(msecs)03d {process}: %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, datefmt="%Y-%m-%d %H:%M:%S", handlers=[handler])


@dataclass
class _Window:
    began_s: float
    passed: int = 0
    dropped: int = 0


class _Windows:
    """Lines by key, so many of which pass in a window."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_key: OrderedDict[Hashable, _Window] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def count(self, key: Hashable) -> int | None:
        """Count a line; return how many were dropped in the window before, or None if this one is dropped."""
        now_s, dropped = time.monotonic(), 0
        window = self._by_key.get(key)
        if window is None or now_s - window.began_s >= WINDOW_S:
            dropped = window.dropped if window else 0
            window = self._by_key[key] = _Window(now_s)
            self._by_key.move_to_end(key)
            if len(self._by_key) > _MOST_KEYS:
                self._by_key.popitem(last=False)
        if window.passed >= self._most:
            window.dropped += 1
            return None
        window.passed += 1
        return dropped


class RepeatLimit(logging.Filter):
    """Drops lines that repeat too often. The first line of the next window says how many were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._same, self._alike = _Windows(SAME_LINES), _Windows(ALIKE_LINES)
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        text = _text_of(record)
        form = record.msg if isinstance(record.msg, str) else text
        with self._lock:
            same = self._same.count((record.name, record.levelno, text))
            alike = None if same is None else self._alike.count((record.name, record.levelno, form))
        if same is None or alike is None:
            return False
        if dropped := max(same, alike):
            record.msg, record.args = f"{text} (and {dropped:,} more like it were left out)", ()
        return True


def _text_of(record: logging.LogRecord) -> str:
    """A call whose values do not fit its form must not fail here, in whoever logs: the handler reports it."""
    try:
        return record.getMessage()
    except Exception:
        pass
    try:
        return f"{record.msg} {record.args}"
    except Exception:
        return f"an unreadable line of {record.pathname}:{record.lineno}"
