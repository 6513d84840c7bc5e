"""What the gateway sends to each server, looked at again and again while a load is played."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np

from backends.errors import HplmError
from bench.kit.fleet.judgement import Floats
from bench.kit.fleet.running import RunningFleet

_EVERY_S = 0.1


@dataclass
class GatewayWatch:
    """Samples of the requests that each server was sent, from the block's begin to its end.

    Attributes:
        fleet: The one that is watched.
        starts_at: Of the load, on the monotonic clock; samples count from it.
    """

    fleet: RunningFleet
    starts_at: float
    _samples: list[tuple[float, Mapping[str, int]]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._ports = {each.server: (each.http, each.grpc) for each in self.fleet.servers()}
        self._thread = threading.Thread(target=self._look, name="gateway-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def counts(self) -> tuple[Floats, dict[str, Floats]]:
        """When it looked, in seconds from the load's start, and what each server had been sent by then."""
        times_s = np.array([at_s for at_s, _ in self._samples])
        return times_s, {name: np.array([float(counts[name]) for _, counts in self._samples]) for name in self._ports}

    def _look(self) -> None:
        admin = self.fleet.admin
        while not self._ended.wait(_EVERY_S):
            try:
                routed = admin.routed()
            except HplmError:
                continue
            counts = {
                name: sum(routed[port].requests for port in ports if port is not None and port in routed)
                for name, ports in self._ports.items()
            }
            self._samples.append((time.monotonic() - self.starts_at, counts))
