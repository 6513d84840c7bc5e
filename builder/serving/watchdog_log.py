"""Lines of the watchdog: on the screen and, with the same time, in its server's log."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path

_WATCHDOG = " watchdog: "


def with_time(line: str) -> str:
    return f"{datetime.now().isoformat(' ', 'milliseconds')}{_WATCHDOG}{line}"


def is_of_watchdog(line: str) -> bool:
    """Say whether a line of a server's log was written by `note`."""
    return _WATCHDOG in line


def note(log_path: Path | None, line: str) -> None:
    """Append a line to a server's log; on a full disk it is dropped."""
    if log_path is not None:
        with suppress(OSError), log_path.open("a", encoding="utf-8") as log:
            log.write(f"{with_time(line)}\n")
