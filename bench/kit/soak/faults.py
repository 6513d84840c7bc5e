"""Faults that `hplm serve` heals: a process of the server is killed or stopped."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from backends.errors import UnavailableError
from bench.kit.supervised import SupervisedServer
from builder.export.model_names import LOWER, UPPER

_TRITON = "tritonserver"
_NOTICED_S = 10.0
_HEALED_S = 60.0
_POLL_S = 0.02
_WORDS = {signal.SIGKILL: "killed", signal.SIGSTOP: "stopped"}


@dataclass(frozen=True)
class Fault:
    """One signal to one process; `target` is a model or tritonserver."""

    target: str
    signal: signal.Signals

    def __str__(self) -> str:
        return f"{self.target} {_WORDS[self.signal]}"

    def strike_and_heal(self, server: SupervisedServer) -> float:
        """Send the signal and wait until the server is ready again; returns the seconds from the signal on.

        Raises:
            UnavailableError: The watchdog does not notice, or the server does not become ready.
        """
        pid = server.triton_pid() if self.target == _TRITON else next(iter(server.stubs().get(self.target, [])), None)
        if pid is None:
            raise UnavailableError(f"there is no process of {self.target} to be {_WORDS[self.signal]}")
        struck_s = time.monotonic()
        os.kill(pid, self.signal)
        while server.is_ready():
            if time.monotonic() - struck_s > _NOTICED_S:
                raise UnavailableError(f"{self}: still ready after {_NOTICED_S:g} s")
            time.sleep(_POLL_S)
        server.wait_ready(_HEALED_S)
        return time.monotonic() - struck_s


def faults(seed: int) -> Iterator[Fault]:
    """All kinds in random order, again and again."""
    kinds = [Fault(target, number) for target in (LOWER, UPPER, _TRITON) for number in _WORDS]
    random.Random(seed).shuffle(kinds)
    while True:
        yield from kinds
