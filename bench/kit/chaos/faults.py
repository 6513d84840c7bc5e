"""How the faults of a plan strike a running server."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from backends.errors import UnavailableError
from bench.kit.chaos.defects import raise_defect
from bench.kit.chaos.plan import TRITON, Fault, Way
from bench.kit.supervised import SupervisedServer

_SIGNALS = {Way.KILL: signal.SIGKILL, Way.STOP: signal.SIGSTOP, Way.PAUSE: signal.SIGSTOP}
_PAUSE_S = 1.5
"""Triton gives a process one second, the watchdog two."""


@dataclass(frozen=True)
class Struck:
    """A fault that has struck.

    Attributes:
        fault: What was planned.
        at_s: When it struck, on the monotonic clock.
        restart_cpu_s: Processor time that the new server's processes have taken by the time it is whole. Other than
            the time that passes it does not depend on what else the machine does. None until then.
    """

    fault: Fault
    at_s: float
    restart_cpu_s: float | None = None


def strike(server: SupervisedServer, fault: Fault, orders: Path) -> Struck:
    """Let a fault happen; `orders` is the folder that loops look into for defects."""
    if fault.kind.way is Way.DEFECT:
        at_s = time.monotonic()
        raise_defect(orders, fault.loop)
        return Struck(fault, at_s)
    pid = _target(server, fault)
    at_s = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(pid, _SIGNALS[fault.kind.way])
        if fault.kind.way is Way.PAUSE:
            time.sleep(_PAUSE_S)
            os.kill(pid, signal.SIGCONT)
    return Struck(fault, at_s)


def cpu_s(server: SupervisedServer) -> float:
    """Return the processor time of tritonserver and its stubs until now."""
    total = 0.0
    for process in server.descendants():
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _target(server: SupervisedServer, fault: Fault) -> int:
    if fault.kind.target == TRITON:
        pids = [pid for pid in [server.triton_pid()] if pid is not None]
    else:
        pids = sorted(server.stubs().get(fault.kind.target, []))
    if not pids:
        raise UnavailableError(f"there is no process of {fault.kind.target} to {fault.kind.way}")
    return pids[fault.instance % len(pids)]
