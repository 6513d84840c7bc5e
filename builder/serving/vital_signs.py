"""What the watchdog looks at: heartbeats of a server's loops, and the states of its processes."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from backends.clock import now_us
from backends.heartbeat import Pulse, read_pulses
from builder.export.model_names import UPPER

SILENT_S = 1.8
"""A loop that is silent for longer makes the server unready; each beats twice a second at least."""
HUNG_S = 8.0
"""A loop that is silent for longer hangs. Between two layers of the largest batch a slow machine takes a second."""
STOPPED_S = 2.0
"""A process that is stopped for longer is replaced; a shorter stop is an operator's look at it."""
_OVERSLEPT_S = 2.0
_DEAD_STATES = frozenset("ZX")
_STOPPED_STATE = "T"


@dataclass(frozen=True)
class Complaint:
    """Why a server is not ready; if it is `fatal`, only a restart helps."""

    text: str
    fatal: bool = False


class VitalSigns:
    """Signs of life of one ready server, whose loops all have begun.

    Args:
        pid: Process of tritonserver.
        folder: Its run folder, with the heartbeats.
    """

    def __init__(self, pid: int, folder: Path) -> None:
        self._pid = pid
        self._folder = folder
        names = {pulse.pid: pulse.process for pulse in read_pulses(folder)}
        # Models of an older export have processes, and write no heartbeats.
        children = (child.pid for child in psutil.Process(pid).children())
        self._processes = {pid: "tritonserver"} | {child: names.get(child, "a model") for child in children}
        self._stopped_since_s: dict[int, float] = {}
        self._looked_s = self._awake_since_s = time.monotonic()

    @property
    def num_open(self) -> int:
        """Requests that the models have accepted and not answered."""
        return sum(abs(pulse.num_open) for pulse in read_pulses(self._folder))

    def num_answered(self) -> int:
        """Return how many requests `hplm_upper` has answered so far."""
        return sum(pulse.num_ended for pulse in read_pulses(self._folder) if pulse.process.startswith(UPPER))

    def look(self) -> list[Complaint]:
        """Judge all processes and loops; called often, by the watchdog alone.

        A watchdog that was suspended itself, with the whole machine perhaps, gives everybody time to go on.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s > _OVERSLEPT_S:
            self._awake_since_s = now_s
        self._looked_s = now_s
        if process_state(self._pid) is None:
            return [self._collected(now_s)]
        of_processes = [found for pid, name in self._processes.items() if (found := self._process(pid, name, now_s))]
        return [*of_processes, *self.silent_loops(now_s - self._awake_since_s)]

    def silent_loops(self, awake_s: float = 0.0) -> list[Complaint]:
        """Judge the heartbeats as they are now; a loop counts as hung only when it was silent while others ran."""
        return [found for pulse in read_pulses(self._folder) if (found := _silence(pulse, awake_s))]

    def _collected(self, now_s: float) -> Complaint:
        """Complain of a server that is gone; its keeper, which has seen it end, soon ends too and says how that was."""
        gone_s = now_s - self._stopped_since_s.setdefault(self._pid, now_s)
        return Complaint(f"tritonserver (process {self._pid}) has died", gone_s > STOPPED_S)

    def _process(self, pid: int, name: str, now_s: float) -> Complaint | None:
        state = process_state(pid)
        if state is None or state in _DEAD_STATES:
            return Complaint(f"{name} (process {pid}) has died{_how_it_died(pid)}", fatal=True)
        if state != _STOPPED_STATE:
            self._stopped_since_s.pop(pid, None)
            return None
        stopped_s = now_s - self._stopped_since_s.setdefault(pid, now_s)
        return Complaint(f"{name} (process {pid}) is stopped", stopped_s > STOPPED_S)


def _silence(pulse: Pulse, awake_s: float) -> Complaint | None:
    loop, silent_s = pulse.silent_s(now_us())
    if silent_s <= SILENT_S:
        return None
    text = f"{pulse.process} (process {pulse.pid}): no heartbeat of its loop {loop!r} for {silent_s:.1f} s"
    return Complaint(text, min(silent_s, awake_s) > HUNG_S)


def process_state(pid: int) -> str | None:
    """Return the letter of Linux for a process's state; None for one that is gone."""
    fields = _stat(pid)
    return fields[0] if fields else None


def _how_it_died(pid: int) -> str:
    """Return the signal or exit code, in brackets; nothing where the process is gone, or ended well."""
    status = int(fields[-1]) if (fields := _stat(pid)) else 0
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f" ({signal.Signals(-code).name})"
    return f" (exit code {code})" if code else ""


def _stat(pid: int) -> list[str]:
    """Return what Linux tells of a process, from its state to its exit status; nothing of one that is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # It stands after the name, which may hold blanks and brackets.
        return file.read().rpartition(")")[2].split()
    return []
