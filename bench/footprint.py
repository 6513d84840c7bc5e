"""What a running server holds: memory, threads and shared memory of all its processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from builder.serving import TritonServer

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX_ARGUMENT = "shm-region-prefix-name="


@dataclass(frozen=True)
class Footprint:
    """`rss_bytes` counts a page in each process that maps it, `pss_bytes` once in all."""

    rss_bytes: int
    pss_bytes: int
    threads: int
    shared_files: int
    shared_file_bytes: int

    @classmethod
    def of(cls, server: TritonServer) -> Footprint:
        parent = psutil.Process(server.pid)
        processes = [parent, *parent.children(recursive=True)]
        files = [path.stat().st_size for path in _SHARED_MEMORY.glob(f"{_prefix(parent)}*")]
        return cls(
            rss_bytes=_sum(processes, lambda process: process.memory_info().rss),
            pss_bytes=_sum(processes, lambda process: process.memory_full_info().pss),
            threads=_sum(processes, lambda process: process.num_threads()),
            shared_files=len(files),
            shared_file_bytes=sum(files),
        )


def _prefix(server: psutil.Process) -> str:
    """Of the server's own files, whatever else runs on this machine."""
    return next(part.partition(_PREFIX_ARGUMENT)[2] for part in server.cmdline() if _PREFIX_ARGUMENT in part)


def _sum(processes: list[psutil.Process], measure: Callable[[psutil.Process], int]) -> int:
    """Of those that are still there."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += measure(process)
    return total
