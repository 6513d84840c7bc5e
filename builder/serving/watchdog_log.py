"""Lines of the watchdog: on the screen and, with the same time, in its server's log."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from io import FileIO
from pathlib import Path

_WATCHDOG = " watchdog: "


def with_time(line: str) -> str:
    return f"{datetime.now().isoformat(' ', 'milliseconds')}{_WATCHDOG}{line}"


def is_of_watchdog(line: str) -> bool:
    """Say whether a line of a server's log was written by `note`."""
    return _WATCHDOG in line


def note(log_path: Path | None, line: str) -> None:
    """Append a line to a server's log; on a full disk it is dropped, and the next one is not glued to what is cut."""
    if log_path is not None:
        with suppress(OSError), log_path.open("a+b", buffering=0) as log:
            log.write(f"{_end_of_cut_line(log)}{with_time(line)}\n".encode())


def _end_of_cut_line(log: FileIO) -> str:
    if not log.seek(0, os.SEEK_END):
        return ""
    log.seek(-1, os.SEEK_END)
    return "" if log.read(1) == b"\n" else "\n"
