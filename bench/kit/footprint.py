"""What a running server holds: memory, threads, open files and shared memory of all its processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from builder.serving.run_folder import SHARED_MEMORY

_PREFIX = re.compile(r"shm-region-prefix-name=(\S+)")
_INSTANCE = re.compile(r" (hplm_(?:lower|upper)_\d+_\d+) ")
_OURS = {"keeper.py": "keeper", "hplm serve": "hplm_serve"}


@dataclass(frozen=True)
class Footprint:
    """`rss_bytes` counts a page in each process that maps it, `pss_bytes` once in all.

    The mappings tell it of each process, by the name of the model's instance or of the program.
    """

    rss_bytes_of: Mapping[str, int]
    pss_bytes_of: Mapping[str, int]
    threads: int
    files: int
    shared_files: int
    shared_file_bytes: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """Look at a process and all that it has started; one that has just ended is left out."""
        parent = psutil.Process(pid)
        processes = [parent, *parent.children(recursive=True)]
        rss_bytes_of, pss_bytes_of = Counter[str](), Counter[str]()
        threads = files = 0
        prefixes = set()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                command, memory = " ".join(process.cmdline()), process.memory_full_info()
                name = _name(process, command)
                rss_bytes_of[name] += memory.rss
                pss_bytes_of[name] += memory.pss
                threads += process.num_threads()
                files += process.num_fds()
                prefixes.update(_PREFIX.findall(command))
        sizes = [size for prefix in prefixes for path in SHARED_MEMORY.glob(f"{prefix}*") if (size := _size(path))]
        return cls(dict(rss_bytes_of), dict(pss_bytes_of), threads, files, len(sizes), sum(sizes))

    @property
    def rss_bytes(self) -> int:
        return sum(self.rss_bytes_of.values())

    @property
    def pss_bytes(self) -> int:
        return sum(self.pss_bytes_of.values())


def _name(process: psutil.Process, command: str) -> str:
    found = _INSTANCE.search(command)
    if found is not None:
        return found[1]
    return next((name for part, name in _OURS.items() if part in command), process.name())


def _size(path: Path) -> int:
    """Return 0 for a file that has gone meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0
