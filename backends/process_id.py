"""Which process: told apart from all others, also from one that gets the same number later."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_START_FIELD = 19
"""Of /proc/<pid>/stat, counted after the name of the program."""


@dataclass(frozen=True)
class ProcessId:
    """`machine` names one start of a machine and, for containers, the space in which its process numbers count."""

    machine: str
    number: int
    start_ticks: int

    @classmethod
    def own(cls) -> Self:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, number: int) -> Self:
        """Name a running process of this machine; raises ProcessLookupError where there is none."""
        start_ticks = _start_ticks(number)
        if start_ticks is None:
            raise ProcessLookupError(number)
        return cls(_machine(), number, start_ticks)

    @property
    def is_known_to_have_ended(self) -> bool:
        """Whether it has ended; of a process on another machine nothing is known."""
        return self.machine == _machine() and _start_ticks(self.number) != self.start_ticks


def _machine() -> str:
    start = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{start}/{os.readlink('/proc/self/ns/pid')}"


def _start_ticks(number: int) -> int | None:
    """When a process began, in ticks since the machine's start; None where there is no such process."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:  # no Path: see `Standstill`
            stat = file.read()
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[_START_FIELD])
