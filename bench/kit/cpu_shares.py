"""What clients and Triton itself take of the cores, while something else is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import psutil

from builder.serving import TritonServer

_TRITON = "tritonserver"


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds up to a moment of the monotonic clock: of clients and Triton itself, and of the models' processes."""

    at_s: float
    others_s: float
    models_s: float


class CpuMeter:
    """Reads the CPU times of a server's processes and of the clients'."""

    def __init__(self, server: TritonServer, clients: Sequence[int]) -> None:
        keeper = psutil.Process(server.pid)
        of_server = [keeper, *keeper.children(recursive=True)]
        self._triton = [process for process in of_server if _name(process) == _TRITON]
        self._models = [process for process in of_server if _name(process) != _TRITON]
        self._clients = [psutil.Process(pid) for pid in clients]

    def read(self) -> CpuUse:
        return CpuUse(time.monotonic(), _cpu_s([*self._triton, *self._clients]), _cpu_s(self._models))

    @cached_property
    def _cores(self) -> int:
        return psutil.cpu_count() or 1

    def left(self, begin: CpuUse, end: CpuUse) -> float:
        """The share of the cores that neither clients nor Triton itself used between two readings."""
        return 1.0 - (end.others_s - begin.others_s) / (self._cores * (end.at_s - begin.at_s))

    def of_models(self, begin: CpuUse, end: CpuUse) -> float:
        """The share of the cores that the models' processes used between two readings."""
        return (end.models_s - begin.models_s) / (self._cores * (end.at_s - begin.at_s))


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
