"""What a running server holds: memory, threads and shared memory of all its processes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from builder.serving import TritonServer

_SHARED_MEMORY = Path("/dev/shm")
_PREFIX_ARGUMENT = "shm-region-prefix-name="
_MODEL = re.compile(r"hplm_(lower|upper)")


@dataclass(frozen=True)
class Footprint:
    """`rss_bytes` counts a page in each process that maps it, `pss_bytes` once in all.

    `rss_bytes_of` is that of the processes of each model, and of Triton itself.
    """

    rss_bytes: int
    rss_bytes_of: Mapping[str, int]
    pss_bytes: int
    threads: int
    shared_files: int
    shared_file_bytes: int

    @classmethod
    def of(cls, server: TritonServer) -> Footprint:
        parent = psutil.Process(server.pid)
        processes = [parent, *parent.children(recursive=True)]
        by_name: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                by_name[_name(process)].append(process)
        files = [path.stat().st_size for path in _SHARED_MEMORY.glob(f"{_prefix(parent)}*")]
        return cls(
            rss_bytes=_sum(processes, _rss_bytes),
            rss_bytes_of={name: _sum(of_name, _rss_bytes) for name, of_name in sorted(by_name.items())},
            pss_bytes=_sum(processes, lambda process: process.memory_full_info().pss),
            threads=_sum(processes, lambda process: process.num_threads()),
            shared_files=len(files),
            shared_file_bytes=sum(files),
        )


def _prefix(server: psutil.Process) -> str:
    """Return the prefix of the server's own files, whatever else runs on this machine."""
    return next(part.partition(_PREFIX_ARGUMENT)[2] for part in server.cmdline() if _PREFIX_ARGUMENT in part)


def _name(process: psutil.Process) -> str:
    """Return the model's name, as it stands in the arguments of its stub, or the program's."""
    found = _MODEL.search(" ".join(process.cmdline()))
    return found[0] if found else process.name()


def _rss_bytes(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _sum(processes: Sequence[psutil.Process], measure: Callable[[psutil.Process], int]) -> int:
    """Add up what is measured of the processes that are still there."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            total += measure(process)
    return total
