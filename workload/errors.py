"""The error of this room; its message is one line for the user who described the load."""

from __future__ import annotations

_LONGEST = 2_000


class WorkloadError(ValueError):
    """A setting or a trace from which no load can be made; a long message, which quotes a file, is cut."""

    def __init__(self, message: str) -> None:
        line = " ".join(message[:_LONGEST].split())
        super().__init__(line.encode("utf-8", "backslashreplace").decode())
