"""The log of a job, of all its attempts: where it lies, its last lines, and what is still being written to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from backends.home import Home

_MAX_TAIL_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.5


def log_path(home: Home, job_id: int) -> Path:
    return home.run / "jobs" / f"{job_id}.log"


def tail(path: Path, lines: int) -> tuple[bytes, int]:
    """The last lines of a log that may not be there yet, and how far it was read."""
    if not path.exists():
        return b"", 0
    with path.open("rb") as file:
        end = file.seek(0, 2)
        start = max(0, end - _MAX_TAIL_BYTES)
        file.seek(start)
        content = file.read(end - start)
    kept = content.splitlines(keepends=True)[-lines:] if lines else []
    return b"".join(kept), end


async def new_lines(path: Path, lines: int, is_over: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
    """The last lines, and then every new one until the job is over."""
    content, position = tail(path, lines)
    yield content
    while True:
        # Asked before reading: what was written before the end is read after it.
        over = await is_over()
        while chunk := _read(path, position):
            position += len(chunk)
            yield chunk
        if over:
            return
        await asyncio.sleep(_POLL_S)


def _read(path: Path, position: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(position)
        return file.read(_CHUNK_BYTES)
